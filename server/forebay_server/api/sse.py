"""Server-sent events: their bytes, and the response that sends them until the end or until the client goes."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forebay_server.api.disconnect import ClientGoneError, until_disconnect
from forebay_server.errors import ApiError, error_body

DONE = b"data: [DONE]\n\n"

encode_json = msgspec.json.Encoder().encode


def event(content: Mapping[str, Any]) -> bytes:
    """One event; JSON has no line breaks, so one `data:` line is enough."""
    return b"data: " + encode_json(content) + b"\n\n"


def named_event(name: str, content: Mapping[str, Any]) -> bytes:
    """One event with an `event:` line."""
    return b"event: " + name.encode("ascii") + b"\n" + event(content)


class EventStreamResponse(Response):
    """Sends events as they come.

    Args:
        events: the encoded events, without the closing `[DONE]`; an ApiError in between becomes an error event.
        close: called in the end, however it comes.
        ends_with_done: whether `[DONE]` closes the stream.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None], *, ends_with_done: bool = True) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._last = DONE if ends_with_done else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the last event or the disconnect."""
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientGoneError:
            scope["forebay.client_gone"] = True
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except ApiError as error:
            await send({"type": "http.response.body", "body": event(error_body(error)), "more_body": True})
        await send({"type": "http.response.body", "body": self._last, "more_body": False})
