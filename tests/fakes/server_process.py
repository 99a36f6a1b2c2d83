"""Start a server in a process of its own, find its ports, read what it says, and end it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(r"API on https?://[^ ]+?:(\d+), probes and metrics on http://[^ ]+?:(\d+)")
FAKE = ("-m", "tests.fakes.serve_with_fake_engine")
REAL = ("-m", "forebay_cli", "serve")


@dataclass(frozen=True)
class Reply:
    """What one HTTP request brought."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ServerProcess:
    """A server on free ports.

    Args:
        folder: for its logs and its termination message.
        arguments: of `forebay serve`, without the ports.
        program: FAKE or REAL.
        environment: added to this process's.
        wait_seconds: until it must be ready; 0: do not wait.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        program: Sequence[str] = FAKE,
        environment: Mapping[str, str] | None = None,
        wait_seconds: float = 60,
    ) -> None:
        self.model = Path(arguments[arguments.index("--model") + 1]) if "--model" in arguments else folder
        self._log_path = folder / f"server-{time.monotonic_ns()}.log"
        self._termination_path = folder / f"termination-{time.monotonic_ns()}"
        python_path = [str(ROOT / name) for name in ("", "server", "kernels")]
        command = [sys.executable, *program, "--host", "127.0.0.1", "--port", "0", "--ops-port", "0", *arguments]
        with self._log_path.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stderr=log,
                stdout=log,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(python_path),
                    "FOREBAY_TERMINATION_LOG": str(self._termination_path),
                    **(environment or {}),
                },
            )
        self.port, self.ops_port = 0, 0
        if wait_seconds:
            try:
                self.wait_until_listening()
                self.wait_until_ready(wait_seconds)
            except BaseException:
                self.close()
                raise

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def termination(self) -> Any:
        """The termination message; None when there is none."""
        return json.loads(self._termination_path.read_text()) if self._termination_path.exists() else None

    def wait_until_listening(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = _LISTENING.search(self.log)
            if found:
                self.port, self.ops_port = int(found[1]), int(found[2])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"the server does not listen:\n{self.log}")

    def wait_until_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.ops("/readyz").status != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server is not ready:\n{self.log}")
            time.sleep(0.05)

    def ops(self, path: str) -> Reply:
        return fetch(f"http://127.0.0.1:{self.ops_port}{path}")

    def api(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Reply:
        return fetch(f"http://127.0.0.1:{self.port}{path}", body, headers, method)

    def load(self) -> Any:
        return self.ops("/load").json

    def engine_pid(self) -> int:
        """The child that runs an engine module."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and b"engine" in command and b"ops.process" not in command:
                return int(entry.name)
        raise AssertionError("no engine process")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 30) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def close(self) -> None:
        """End it: in order if it can, so that it removes its temporary folder."""
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGINT):
            if self.process.poll() is None:
                self.process.send_signal(number)
                time.sleep(0.05)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def fetch(url: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Reply:
    """One request; bodies that are not bytes go as JSON. Error statuses are replies, not exceptions."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    if method:
        request.method = method
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return Reply(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers, error.read())


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Poll until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)
