"""`GET /v1/models` and `GET /v1/models/{id}`."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from forebay_server.api.openai_answers import ModelAnswer, ModelsAnswer, documented
from forebay_server.api.service import Service


def models_router(service: Service) -> APIRouter:
    """The routes."""
    router = APIRouter()

    def entry(name: str) -> dict[str, Any]:
        model = service.require_model(name)
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "forebay",
            "root": service.model_name,
            "parent": None,
            "revision": service.config.revision,
            "max_model_len": model.context_tokens,
            "permission": [],
        }

    @router.get(
        "/v1/models",
        summary="The names that this server answers to",
        responses=documented(ModelsAnswer, has_body=False),
    )
    async def list_models() -> Response:
        return JSONResponse({"object": "list", "data": [entry(name) for name in service.config.served_model_names]})

    @router.get("/v1/models/{name:path}", summary="One of them", responses=documented(ModelAnswer, has_body=False))
    async def get_model(name: str) -> Response:
        return JSONResponse(entry(name))

    return router
