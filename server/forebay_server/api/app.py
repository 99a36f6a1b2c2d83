"""Build the web application: routes, middleware, and every error in OpenAI's shape."""

import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp

from forebay_server.api.chat import chat_router
from forebay_server.api.completions import completions_router
from forebay_server.api.disconnect import ClientGoneError
from forebay_server.api.embeddings import embeddings_router
from forebay_server.api.health import health_router
from forebay_server.api.middleware import Gatekeeper, error_headers
from forebay_server.api.models import models_router
from forebay_server.api.openapi_page import description_router
from forebay_server.api.responses import responses_router
from forebay_server.api.service import Service
from forebay_server.api.tokenization import tokenize_router
from forebay_server.errors import ApiError, InternalError, InvalidRequestError, NotFoundError, error_body

_CLIENT_CLOSED_REQUEST = 499
_FIELD_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_KIND_NAMES = frozenset({"body", "str", "int", "float", "bool", "none"})
_logger = logging.getLogger(__name__)


def build_app(service: Service) -> ASGIApp:
    """The application of one server: the gatekeeper comes first, so that what it refuses costs little."""
    app: ASGIApp = Gatekeeper(_routes(service), service)
    if service.config.cors_allow_origins:
        app = CORSMiddleware(
            app,
            allow_origins=service.config.cors_allow_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return app


def _routes(service: Service) -> FastAPI:
    app = FastAPI(
        title="Forebay",
        version=version("forebay"),
        description="OpenAI's endpoints for one model. Unknown fields of a body are tolerated.",
        redoc_url=None,
        docs_url=None,
        openapi_url=None,
    )
    app.include_router(description_router(app, service))
    for router in (
        chat_router,
        completions_router,
        embeddings_router,
        models_router,
        responses_router,
        tokenize_router,
        health_router,
    ):
        app.include_router(router(service))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(Exception, _unexpected)
    return app


async def _api_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error_body(error), int(error.status), headers=error_headers(error))


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    # Of a field that may be of several kinds, pydantic reports what is wrong with each; the most telling is deepest.
    told = min(error.errors(), key=lambda entry: (entry["type"].endswith("_type"), -len(entry["loc"])))
    if told["type"] == "json_invalid":
        return await _api_error(request, InvalidRequestError(f"the body is not valid JSON: {told['ctx']['error']}"))
    param = field_path(told["loc"])
    message = f"{param}: {told['msg']}" if param else f"the body is not right: {told['msg']}"
    return await _api_error(request, InvalidRequestError(message, param=param or None))


def field_path(location: Sequence[str | int]) -> str:
    """Where in the body a validation error lies, such as `messages[0].role`, without pydantic's words for types."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _KIND_NAMES and _FIELD_NAME.fullmatch(part):
            path += f".{part}" if path else part
    return path


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths, wrong verbs, unreadable bodies."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == HTTPStatus.NOT_FOUND:
        return await _api_error(request, NotFoundError(f"there is no {request.url.path}", code="not_found"))
    described: dict[str, Any] = error_body(InvalidRequestError(_http_message(request, error)))
    return JSONResponse(described, error.status_code, headers=error.headers)


def _http_message(request: Request, error: HTTPException) -> str:
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{request.url.path} does not answer {request.method}"
    return f"the request could not be read: {error.detail}"


async def _client_gone(request: Request, _: Exception) -> Response:
    request.scope["forebay.client_gone"] = True
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _unexpected(request: Request, error: Exception) -> Response:
    _logger.error("%s %s failed: %r", request.method, request.url.path, error)
    return await _api_error(request, InternalError("this request failed inside the server; others are not affected"))
