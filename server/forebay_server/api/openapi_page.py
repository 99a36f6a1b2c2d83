"""The OpenAPI description of the application, without what FastAPI says and this server does not do."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi


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
