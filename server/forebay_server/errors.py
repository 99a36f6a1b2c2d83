"""Every error of the server: what a client is told (HTTP, OpenAI type) and what Kubernetes is told (exit code)."""

from enum import IntEnum
from http import HTTPStatus
from typing import Literal


class ExitCode(IntEnum):
    """How the process ends; the operator reads it (contract between operator and engine)."""

    DRAINED = 0
    BAD_CONFIGURATION = 2
    MODEL_NOT_FOUND = 11
    NOT_ALLOWED = 12
    WEIGHTS_DO_NOT_FIT = 13
    KV_CACHE_DOES_NOT_FIT = 14
    DEVICE_LOST = 15
    CORRUPT_WEIGHTS = 16
    ENGINE_HUNG = 17


class ForebayError(Exception):
    """Base of all errors that a user may see; the message names what, where and what to do."""


class StartupError(ForebayError):
    """The server cannot serve: it ends with `exit_code` and writes the termination message.

    Args:
        exit_code: what Kubernetes sees.
        reason: CamelCase word, stable, for the condition in status.
        message: one or two sentences naming the file or flag.
        need_bytes: memory that was needed, if that was the trouble.
        have_bytes: memory that there was.
        suggestion: the change that would help.
    """

    def __init__(
        self,
        exit_code: ExitCode,
        reason: str,
        message: str,
        *,
        need_bytes: int | None = None,
        have_bytes: int | None = None,
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason
        self.message = message
        self.need_bytes = need_bytes
        self.have_bytes = have_bytes
        self.suggestion = suggestion


ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "rate_limit_error",
    "service_unavailable_error",
    "timeout_error",
    "internal_server_error",
]


class ApiError(ForebayError):
    """A request that cannot be served; becomes `{"error": {message, type, param, code}}`.

    Args:
        message: what is wrong and what would be right.
        param: the field of the request, as the client wrote it.
        code: OpenAI's machine-readable code, such as `context_length_exceeded`.
        retry_after_seconds: sent as `Retry-After` (429 and 503).
    """

    status: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR
    error_type: ErrorType = "internal_server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class InvalidRequestError(ApiError):
    """400: a field is missing, of the wrong kind or out of range."""

    status = HTTPStatus.BAD_REQUEST
    error_type: ErrorType = "invalid_request_error"


class UnauthorizedError(ApiError):
    """401: no API key, or a wrong one."""

    status = HTTPStatus.UNAUTHORIZED
    error_type: ErrorType = "authentication_error"


class NotFoundError(ApiError):
    """404: unknown model or path."""

    status = HTTPStatus.NOT_FOUND
    error_type: ErrorType = "not_found_error"


class BodyTooLargeError(InvalidRequestError):
    """413: the body is longer than the server takes."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMediaTypeError(InvalidRequestError):
    """415: the body is not JSON."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class OverloadedError(ApiError):
    """429: the queue is full; the client may come back after `retry_after_seconds`."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    error_type: ErrorType = "rate_limit_error"


class UnavailableError(ApiError):
    """503: loading, draining, or the engine is gone."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    error_type: ErrorType = "service_unavailable_error"


class RequestTimeoutError(ApiError):
    """504: the answer was not done within the server's `--request-timeout`; trying again would take as long."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    error_type: ErrorType = "timeout_error"


class InternalError(ApiError):
    """500: this request failed; the engine lives on."""


def error_body(error: ApiError) -> dict[str, object]:
    """The error as OpenAI's clients read it."""
    return {"error": {"message": error.message, "type": error.error_type, "param": error.param, "code": error.code}}
