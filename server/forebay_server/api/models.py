"""`GET /v1/models` and `GET /v1/models/{id}`."""

from typing import Any

from fastapi import APIRouter

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
        }

    @router.get("/v1/models", summary="The names that this server answers to")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [entry(name) for name in service.config.served_model_names]}

    @router.get("/v1/models/{name:path}", summary="One of them")
    async def get_model(name: str) -> dict[str, Any]:
        return entry(name)

    return router
