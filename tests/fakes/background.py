"""Requests that run while a test goes on."""

import contextlib
import http.client
import threading

from tests.fakes.server_process import Reply, ServerProcess, wait_for

COMPLETIONS = "/v1/completions"


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
