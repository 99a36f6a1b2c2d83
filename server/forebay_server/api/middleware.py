"""What happens to every request before its route: id, key, readiness, content type, size; and the log line after it."""

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay_server.api.admission import draining_error
from forebay_server.api.api_keys import ApiKeys
from forebay_server.api.health import ALWAYS_OPEN
from forebay_server.api.request_facts import facts_of
from forebay_server.api.request_log import RequestLog
from forebay_server.api.service import Service
from forebay_server.errors import (
    ApiError,
    BodyTooLargeError,
    InvalidRequestError,
    OverloadedError,
    RequestTimeoutError,
    UnauthorizedError,
    UnsupportedMediaTypeError,
    error_body,
)

_TAKES_PLACES = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"})
_REFUSALS_SECONDS = 1.0
_MAX_DISCARDED_BYTES = 64 * 1024 * 1024
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_CLIENT_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_logger = logging.getLogger("forebay.request")


class _Body:
    """The body of one request, read at most once."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True
        self.is_begun = False
        """Whether the client was asked for it, which one that expects `100 Continue` waits for."""
        self.content = b""
        """The whole body, once it has been read within the limit."""

    async def parts(self) -> AsyncIterator[bytes]:
        """What has not been read yet."""
        self.is_begun = True
        while self._more:
            message = await self._receive()
            self._more = message["type"] == "http.request" and bool(message.get("more_body"))
            yield message.get("body", b"")

    async def discard(self) -> None:
        """Read what is left: a client that still sends would see a reset connection and not the answer."""
        size = 0
        async for part in self.parts():
            size += len(part)
            if size > _MAX_DISCARDED_BYTES:
                return


class Gatekeeper:
    """The middleware (plain ASGI, so that streams and disconnects pass through untouched).

    Args:
        app: what comes after.
        service: the server.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        key_file = service.config.api_key_file
        self._keys = None if key_file is None else ApiKeys(Path(key_file))
        log_file = service.config.request_log
        self._log = None if log_file is None else RequestLog(log_file, with_body=service.config.request_log_body)
        self._num_refused = 0
        """Since they were last told of."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _CLIENT_REQUEST_ID.fullmatch(given) else f"req-{random.getrandbits(96):024x}"
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode("ascii"))]
            await send(message)

        body = _Body(receive)
        try:
            self._check(scope, headers)
            if scope["method"] in ("POST", "PUT", "PATCH"):
                receive = await self._with_body(headers, body, receive)
            await self._app(scope, receive, send_with_id)
        except ApiError as error:
            # when there is too much to do, a body is not waited for, unless the connection would be cut while it comes
            is_held_back = not body.is_begun and headers.get("expect", "").lower() == "100-continue"
            if not is_held_back and (not isinstance(error, OverloadedError) or _closes_after_answer(scope, headers)):
                await body.discard()
            await send_error(error, send_with_id, closes=is_held_back)
        finally:
            if scope["path"] not in ALWAYS_OPEN:
                seconds = time.monotonic() - started
                if status == OverloadedError.status:
                    self._count_refusal()
                else:
                    _log(scope, status, seconds, request_id)
                if self._service.traces is not None:
                    facts = facts_of(scope)
                    self._service.traces.record(scope["method"], scope["path"], headers, status, seconds, facts)
                if self._log is not None:
                    self._log.write(scope, status, seconds, request_id, body.content)

    def _count_refusal(self) -> None:
        """One line a second for all of them: a line for each would cost as much as the refusal."""
        if self._num_refused == 0:
            asyncio.get_running_loop().call_later(_REFUSALS_SECONDS, self._tell_refusals)
        self._num_refused += 1

    def _tell_refusals(self) -> None:
        _logger.warning("%d requests were refused with 429 within %g s", self._num_refused, _REFUSALS_SECONDS)
        self._num_refused = 0

    def _check(self, scope: Scope, headers: Headers) -> None:
        path: str = scope["path"]
        if path in ALWAYS_OPEN:
            return
        if self._keys is not None and not self._keys.accepts(headers.get("authorization", "")):
            raise UnauthorizedError("a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
        if scope["method"] != "POST":
            return
        if self._service.state.get("is_draining"):
            raise draining_error()
        self._service.require_model()
        if path in _TAKES_PLACES:
            self._service.admission.refuse_when_full()
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json" and not content_type.endswith("+json"):
            raise UnsupportedMediaTypeError(
                f"the content type is {content_type or 'missing'}; send JSON with Content-Type: application/json"
            )
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            raise UnsupportedMediaTypeError(f"Content-Encoding: {coding} is not taken; send the body as it is")

    async def _with_body(self, headers: Headers, body: _Body, receive: Receive) -> Receive:
        """Read the body, within the limit, and hand it on in one piece."""
        limit = self._service.config.max_request_bytes
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise BodyTooLargeError(f"the body has {int(length)} bytes; at most {limit} are taken")
        parts: list[bytes] = []
        size = 0
        async for part in body.parts():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise BodyTooLargeError(f"the body has more than {limit} bytes")
        body.content = b"".join(parts)
        _check_unicode(body.content)
        pending: list[Message] = [{"type": "http.request", "body": body.content, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        return replay


def _closes_after_answer(scope: Scope, headers: Headers) -> bool:
    """Whether the connection ends with this answer; otherwise what comes of an unread body is passed over."""
    return scope["http_version"] == "1.0" or "close" in headers.get("connection", "").lower()


def _check_unicode(body: bytes) -> None:
    """Refuse half characters here, once for every field: JSON can hold them, UTF-8 and the tokenizer cannot.

    Raises:
        InvalidRequestError: the body is no UTF-8, or one of its strings has a lone surrogate.
    """
    try:
        body.decode("utf-8")
        if _SURROGATE_ESCAPE.search(body):
            json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the body is not valid UTF-8: byte {error.start} cannot be read") from error
    except UnicodeEncodeError as error:
        raise InvalidRequestError("the body is not valid Unicode: a string has a lone surrogate") from error
    except (ValueError, RecursionError):
        return  # no JSON: whoever parses it will say so


async def send_error(error: ApiError, send: Send, *, closes: bool = False) -> None:
    """Answer with an error, OpenAI-shaped.

    Args:
        error: what to tell.
        send: the request's channel.
        closes: end the connection, on which nobody could tell a body that still comes from the next request.
    """
    body = msgspec.json.encode(error_body(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error_headers(error).items()]
    headers += [(b"connection", b"close")] if closes else []
    await send({"type": "http.response.start", "status": int(error.status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_headers(error: ApiError) -> dict[str, str]:
    """Headers that an error brings."""
    headers: dict[str, str] = {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == RequestTimeoutError.status:
        headers["X-Should-Retry"] = "false"  # OpenAI's clients repeat requests that got a 5xx, unless told not to
    if error.code == "draining":
        headers["Connection"] = "close"  # so that a client's pool does not come back here
    if error.status == UnauthorizedError.status:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def _log(scope: Scope, status: int, seconds: float, request_id: str) -> None:
    """One line a request; never a word of its content."""
    facts = facts_of(scope)
    names = {"prompt_tokens": "prompt", "cached_tokens": "cached", "completion_tokens": "generated"}
    tokens = "".join([f" {short}={facts[name]}" for name, short in names.items() if name in facts])
    outcome = "client left" if scope.get("forebay.client_gone") or not status else str(status)
    _logger.info("%s %s %s %.2fs%s id=%s", scope["method"], scope["path"], outcome, seconds, tokens, request_id)
