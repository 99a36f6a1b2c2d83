"""An engine without a model: speaks the contract of `forebay serve` (probes, progress, load, SIGTERM, exit codes).

Standard library only, so that it runs in a small image as the program `forebay`. What it pretends is set by the
environment at start and by `POST /fake` on the ops port (a JSON object of the same fields) at run time:

    FAKE_LOAD_SECONDS   how long loading takes (0)
    FAKE_MODEL_BYTES    what it claims to load (100000000)
    FAKE_RUNNING, FAKE_WAITING   what /load says (0)
    FAKE_EXIT_CODE      end with this code and a termination message instead of serving (0: serve)
    FAKE_HUNG           1: /livez fails (0)
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")


class State:
    """What the server pretends; one lock, because probes come from many threads."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._draining = False
        self._fields = {
            "loadSeconds": float(environment.get("FAKE_LOAD_SECONDS", "0")),
            "modelBytes": int(environment.get("FAKE_MODEL_BYTES", "100000000")),
            "running": int(environment.get("FAKE_RUNNING", "0")),
            "waiting": int(environment.get("FAKE_WAITING", "0")),
            "hung": int(environment.get("FAKE_HUNG", "0")),
            "loadStatus": 200,
        }

    def change(self, fields: dict[str, int | float]) -> None:
        with self._lock:
            self._fields.update(fields)

    def drain(self) -> None:
        with self._lock:
            self._draining = True

    def get(self, field: str) -> int | float:
        with self._lock:
            return self._fields[field]

    def share_loaded(self) -> float:
        seconds = self.get("loadSeconds")
        return 1.0 if seconds <= 0 else min(1.0, (time.monotonic() - self._started) / seconds)

    def phase(self) -> str:
        if self._draining:
            return "draining"
        return "serving" if self.share_loaded() >= 1 else "loading"


def answer(state: State, path: str) -> tuple[int, str]:
    """Status and body of a GET on the ops port."""
    phase = state.phase()
    load = {"running": int(state.get("running")), "waiting": int(state.get("waiting"))}
    if path == "/livez":
        return (503, "hung") if state.get("hung") else (200, "ok")
    if path == "/readyz":
        return (200, "ok") if phase == "serving" else (503, phase)
    if path == "/startupz":
        total = int(state.get("modelBytes"))
        done = int(total * state.share_loaded())
        return 200, json.dumps({"phase": phase, "bytesDone": done, "bytesTotal": total, "secondsSinceProgress": 0.0})
    if path == "/load":
        busy = {**load, "kvUsage": 0.0, "kvCapacityTokens": 1024, "tokensPerSecond": 0.0, "stepCount": 0}
        return int(state.get("loadStatus")), json.dumps(busy)
    if path == "/metrics":
        lines = [f"forebay_num_requests_{name} {value}" for name, value in load.items()]
        return 200, "\n".join([*lines, "forebay_kv_cache_usage_ratio 0.0", "forebay_kv_cache_capacity_tokens 1024", ""])
    return 404, json.dumps({"error": f"there is no {path}"})


def handler_for(state: State, model: str, *, ops: bool) -> type[BaseHTTPRequestHandler]:
    """A handler class for one of the two ports."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not ops and self.path == "/v1/models":
                self.reply(200, json.dumps({"object": "list", "data": [{"id": model, "object": "model"}]}))
            else:
                self.reply(*answer(state, self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if ops and self.path == "/fake":
                state.change(json.loads(body))
                self.reply(200, "{}")
            elif state.phase() != "serving":
                self.reply(503, json.dumps({"error": {"message": state.phase()}}))
            else:
                choice = {"index": 0, "message": {"role": "assistant", "content": "fake"}, "finish_reason": "stop"}
                self.reply(200, json.dumps({"object": "chat.completion", "model": model, "choices": [choice]}))

        def reply(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if text.startswith("{") else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    return Handler


def parser() -> argparse.ArgumentParser:
    """The flags that it looks at; all others of `forebay serve` are taken and ignored."""
    result = argparse.ArgumentParser(prog="forebay serve")
    result.add_argument("--served-model-name", action="append", default=None)
    result.add_argument("--port", type=int, default=8000)
    result.add_argument("--ops-port", type=int, default=8001)
    result.add_argument("--drain-timeout", type=float, default=300.0)
    result.add_argument("--plan-file", type=Path)
    return result


def serve(state: State, model: str, port: int, ops_port: int) -> tuple[ThreadingHTTPServer, ThreadingHTTPServer]:
    """Both servers, running in threads; port 0 takes any that is free."""
    servers = (
        ThreadingHTTPServer(("", port), handler_for(state, model, ops=False)),
        ThreadingHTTPServer(("", ops_port), handler_for(state, model, ops=True)),
    )
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return servers


def fail(code: int) -> int:
    """End as the engine does when it cannot serve."""
    message = {
        "reason": "Fake",
        "message": f"told to end with {code}",
        "needBytes": 2,
        "haveBytes": 1,
        "suggestion": "tell it not to",
    }
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(json.dumps(message))
    return code


def main(argv: list[str]) -> int:
    """Run until SIGTERM; then drain, and 0."""
    arguments, _ = parser().parse_known_args(argv)
    if code := int(os.environ.get("FAKE_EXIT_CODE", "0")):
        return fail(code)
    if arguments.plan_file:
        json.loads(arguments.plan_file.read_text())
    state = State(dict(os.environ))
    stop = threading.Event()

    def end(*_: object) -> None:
        state.drain()
        stop.set()

    signal.signal(signal.SIGTERM, end)
    serve(state, (arguments.served_model_name or ["fake"])[0], arguments.port, arguments.ops_port)
    stop.wait()
    deadline = time.monotonic() + arguments.drain_timeout
    while state.get("running") and time.monotonic() < deadline:
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
