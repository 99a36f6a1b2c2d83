"""One JSON line a request: ids, timings, token counts, how it ended; its text only when that was asked for."""

import logging
import logging.handlers
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import Scope

from forebay_server.api.request_facts import facts_of

STANDARD_OUTPUT = "-"


class RequestLog:
    """Writes to a file (opened anew after a rotation) or to the standard output.

    Args:
        path: of the file; `-`: standard output.
        with_body: write what the client sent, too.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str, *, with_body: bool = False) -> None:
        self.with_body = with_body
        handler = (
            logging.StreamHandler(sys.stdout)
            if path == STANDARD_OUTPUT
            else logging.handlers.WatchedFileHandler(Path(path), encoding="utf-8")
        )
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._logger = logging.Logger("forebay.request_log", logging.INFO)  # not in the tree: nobody else's handlers
        self._logger.addHandler(handler)

    def write(self, scope: Scope, status: int, seconds: float, request_id: str, body: bytes) -> None:
        """Write the line of a request that has ended.

        Args:
            scope: of the request, with its facts.
            status: HTTP status; 0 when nothing was sent.
            seconds: from its first byte to the last one of the answer.
            request_id: the `X-Request-Id`.
            body: what the client sent.
        """
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "client_left": bool(scope.get("forebay.client_gone")) or not status,
            "seconds": round(seconds, 6),
            **_told(facts_of(scope)),
        }
        if self.with_body:
            line["body"] = body.decode("utf-8", "replace")
        self._logger.info(msgspec.json.encode(line).decode())


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in facts.items()}
