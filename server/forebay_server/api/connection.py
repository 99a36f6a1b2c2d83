"""One HTTP connection: uvicorn's, with a bound on the head of a request, which its fast parser does not have."""

from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forebay_server.errors import InvalidRequestError, error_body

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; other servers take 8 to 32 KiB."""


class Connection(HttpToolsProtocol):
    """See `HttpToolsProtocol`."""

    _is_in_head = False
    _num_head_bytes = 0

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
