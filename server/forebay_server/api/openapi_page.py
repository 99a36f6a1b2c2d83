"""The OpenAPI description of the application, without what FastAPI says and this server does not do."""

from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response

from forebay_server.api.service import Service


def description_router(app: FastAPI, service: Service) -> APIRouter:
    """`/openapi.json`, and `/docs`, where a browser shows it."""
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        page = await service.in_thread(lambda: openapi_page(app))  # the first time takes a moment
        return JSONResponse(page)

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return get_swagger_ui_html(openapi_url="/openapi.json", title=app.title)

    return router


def openapi_page(app: FastAPI) -> dict[str, Any]:
    """The page, made once: bodies that are wrong get 400 here, not FastAPI's 422."""
    if app.openapi_schema is None:
        page = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
        for methods in page["paths"].values():
            for route in methods.values():
                route["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            page["components"]["schemas"].pop(name, None)
        page["components"]["securitySchemes"] = {
            "ApiKey": {"type": "http", "scheme": "bearer", "description": "needed where the server has --api-key-file"}
        }
        page["security"] = [{}, {"ApiKey": []}]
        app.openapi_schema = page
    return app.openapi_schema
