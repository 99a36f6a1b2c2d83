"""Requests that run while a test goes on."""

import contextlib
import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator

from tests.fakes.server_process import Reply, ServerProcess, wait_for

COMPLETIONS = "/v1/completions"


@contextlib.contextmanager
def all_at_once(server: ServerProcess) -> Iterator[None]:
    """Let the engine stand still while requests are sent, so that they meet in its pool on a machine of any speed."""
    engine = server.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    try:
        yield
        time.sleep(1.5)  # no gauge shows what is handed to an engine that stands still; requests take milliseconds
    finally:
        os.kill(engine, signal.SIGCONT)


class Background:
    """A request that runs while the test goes on."""

    def __init__(self, server: ServerProcess, num_tokens: int, *, stream: bool = False) -> None:
        self.reply: Reply | None = None
        body = {"prompt": "abc", "ignore_eos": True, "max_tokens": num_tokens, "stream": stream}

        def work() -> None:
            with contextlib.suppress(http.client.HTTPException):  # the connection was cut
                self.reply = server.api(COMPLETIONS, body)

        self._thread = threading.Thread(target=work)
        self._thread.start()
        wait_for(lambda: server.load()["running"] > 0, 10, "the request runs")

    def result(self) -> Reply:
        self.join()
        assert self.reply is not None
        return self.reply

    def join(self) -> None:
        self._thread.join(30)
