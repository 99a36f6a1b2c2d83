"""What answers at any time, loading or not: `/health`, `/ping`, `/version`, `/metrics`, `/load`."""

import time
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from forebay_server.api.openai_answers import HealthAnswer
from forebay_server.api.service import Service
from forebay_server.metrics import render_metrics
from forebay_server.ops.probes import readiness
from forebay_server.ops.reports import load_report

ALWAYS_OPEN = frozenset({"/health", "/ping", "/version", "/metrics", "/load", "/docs", "/openapi.json"})
"""Paths that need no key and no model."""


def health_router(service: Service) -> APIRouter:
    """The routes."""
    router = APIRouter()

    @router.get(
        "/health",
        summary="200 when requests are answered",
        responses={code: {"model": HealthAnswer, "description": "the verdict"} for code in (200, 503)},
    )
    @router.head("/health", include_in_schema=False)
    @router.get("/ping", include_in_schema=False)
    @router.head("/ping", include_in_schema=False)
    async def health() -> JSONResponse:
        verdict = readiness(service.state.snapshot(), time.monotonic(), service.limits)
        return JSONResponse({"reason": verdict.reason, "message": verdict.message}, 200 if verdict.ok else 503)

    @router.get("/version", summary="Of the server")
    async def server_version() -> dict[str, str]:
        return {"version": version("forebay")}

    @router.get(
        "/metrics",
        summary="Prometheus; the ops port has the same",
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "every metric"}},
        response_class=Response,
    )
    async def metrics(request: Request) -> Response:
        body, content_type = render_metrics(service.state, service.model_name, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    @router.get("/load", summary="How busy the server is; the ops port has the same")
    async def load() -> dict[str, Any]:
        return load_report(service.state.snapshot(), service.token_rate.tokens_per_second())

    return router
