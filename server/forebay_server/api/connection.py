"""One HTTP connection: uvicorn's, with a bound on heads, fewer and larger writes, and answers that HTTP/1.0 knows."""

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from forebay_server.errors import InvalidRequestError, error_body

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; other servers take 8 to 32 KiB."""


class GatheringTransport:
    """Writes at once what is given in one round of the event loop: head and body of an answer are one system call.

    Args:
        transport: of the connection.
        loop: the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send in this round."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Close once everything is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's."""
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """See `HttpToolsProtocol`."""

    _is_in_head = False
    _num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client has connected."""
        super().connection_made(transport)
        self.transport = GatheringTransport(transport, self.loop)  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse what has come; a head that grows too long is refused, and the connection closed."""
        super().data_received(data)
        if self._is_in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                message = f"request line and headers have more than {MAX_HEAD_BYTES} bytes"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)

    def on_message_begin(self) -> None:
        """A request line begins."""
        super().on_message_begin()
        self._is_in_head = True
        self._num_head_bytes = 0

    def on_headers_complete(self) -> None:
        """The last header was read."""
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and close the connection."""
        self._refuse(HTTPStatus.BAD_REQUEST, "this is no HTTP request")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        if self._may_answer():
            body = msgspec.json.encode(error_body(InvalidRequestError(message)))
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _may_answer(self) -> bool:
        """Whether what is sent now would be the answer to what is being read, and not stand amid that to another."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return not (self._is_in_head or self.pipeline or cycle.response_started)


def _without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Answers of unknown length end with the connection (RFC 9112, 6.3): a client of HTTP/1.0 knows no chunks.

    Args:
        app: what answers.
        cycle: uvicorn's state of the answer: it counts what is left of a length that was announced.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_plain(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = None if has_length else False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer
