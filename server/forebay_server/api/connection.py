"""One HTTP connection: uvicorn's, with a bound on the head of a request, and with fewer and larger writes."""

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

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
                self._refuse_head()

    def on_message_begin(self) -> None:
        """A request line begins."""
        super().on_message_begin()
        self._is_in_head = True
        self._num_head_bytes = 0

    def on_headers_complete(self) -> None:
        """The last header was read."""
        self._is_in_head = False
        super().on_headers_complete()

    def _refuse_head(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering:  # else there is no place for another answer
            error = InvalidRequestError(f"request line and headers have more than {MAX_HEAD_BYTES} bytes")
            body = msgspec.json.encode(error_body(error))
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE] + head + body)
        self.transport.close()
