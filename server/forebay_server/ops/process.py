"""The ops process: answers probes, progress, metrics and load from shared memory, whatever the others do."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath

import msgspec

from forebay_server.launch import OpsLaunch, die_with_parent
from forebay_server.metrics import render_metrics
from forebay_server.ops.probes import Limits, Verdict, liveness, readiness
from forebay_server.ops.reports import TokenRate, load_report, startup_report
from forebay_server.ops.shared_state import SharedState

_IDLE_CONNECTION_SECONDS = 30.0
RESET_PATH = "/reset_prefix_cache"

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class OpsPages:
    """What each path answers."""

    def __init__(self, launch: OpsLaunch, state: SharedState) -> None:
        self._launch = launch
        self._state = state
        self._limits = Limits(
            hang_timeout=launch.hang_timeout_seconds,
            load_stall_timeout=launch.load_stall_timeout_seconds,
            compile_timeout=launch.compile_timeout_seconds,
        )
        self.token_rate = TokenRate(state)
        self._pages: dict[str, Callable[[str], Answer]] = {
            "/livez": lambda _: self._verdict(liveness),
            "/readyz": lambda _: self._verdict(readiness),
            "/startupz": lambda _: _json_answer(
                HTTPStatus.OK, startup_report(state.snapshot(), time.monotonic(), launch.plan)
            ),
            "/load": lambda _: _json_answer(
                HTTPStatus.OK, load_report(state.snapshot(), self.token_rate.tokens_per_second())
            ),
            "/metrics": self._metrics,
        }

    def answer(self, path: str, accept: str) -> Answer:
        """Answer a GET."""
        page = self._pages.get(str(PurePosixPath(path.partition("?")[0])))
        if page is None:
            message = f"there is no {path}; there are {', '.join(self._pages)}"
            return _json_answer(HTTPStatus.NOT_FOUND, {"error": message})
        return page(accept)

    def act(self, path: str) -> Answer:
        """Answer a POST."""
        if path.partition("?")[0] != RESET_PATH:
            message = f"only GET and HEAD are answered here, and POST {RESET_PATH}"
            return _json_answer(HTTPStatus.METHOD_NOT_ALLOWED, {"error": message})
        self._state.ask_for_cache_reset()
        return _json_answer(HTTPStatus.OK, {"ok": True})

    def _verdict(self, probe: Callable[..., Verdict]) -> Answer:
        verdict = probe(self._state.snapshot(), time.monotonic(), self._limits)
        status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
        return _json_answer(status, {"ok": verdict.ok, "reason": verdict.reason, "message": verdict.message})

    def _metrics(self, accept: str) -> Answer:
        body, content_type = render_metrics(self._state, self._launch.model_name, accept)
        return HTTPStatus.OK, content_type, body


def _json_answer(status: HTTPStatus, content: dict[str, object]) -> Answer:
    return status, "application/json", json.dumps(content).encode() + b"\n"


class OpsServer(ThreadingHTTPServer):
    """One thread a connection, on a socket that the parent has bound."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, pages: OpsPages) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.pages = pages


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_CONNECTION_SECONDS
    wbufsize = -1  # headers and body leave in one packet
    disable_nagle_algorithm = True
    server: OpsServer

    def do_GET(self) -> None:
        self._send(*self.server.pages.answer(self.path, self.headers.get("Accept", "")))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.close_connection = True  # the body stays unread
        self._send(*self.server.pages.act(self.path))

    def do_PUT(self) -> None:
        self.close_connection = True
        self._send(*_json_answer(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET, HEAD and POST are answered here"}))

    do_DELETE = do_PATCH = do_PUT  # noqa: N815 - names of the standard library

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Probes are not worth a line."""


def main() -> None:
    """Serve until the parent ends."""
    launch = msgspec.json.decode(sys.argv[-1], type=OpsLaunch)
    die_with_parent(launch.parent_pid)
    pages = OpsPages(launch, SharedState(launch.state_fd))
    server = OpsServer(socket.socket(fileno=launch.listen_fd), pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(1.0)
        pages.token_rate.sample()


if __name__ == "__main__":
    main()
