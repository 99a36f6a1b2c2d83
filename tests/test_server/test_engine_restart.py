"""The API process outlives its engine: clients are told, another engine is started, and only so often."""

import os
import signal
import time

import pytest

from forebay_server.restarts import WINDOW_SECONDS, RestartPolicy
from tests.fakes.background import COMPLETIONS, Background
from tests.fakes.server_process import Reply, ServerProcess, wait_for
from tests.test_server.conftest import StartServer

SLOW = {"fake_step_seconds": "0.05"}


def check_told(reply: Reply, *, stream: bool) -> None:
    """The client got an error, not silence."""
    if stream:
        assert b'"code":"engine_lost"' in reply.body
        assert reply.body.endswith(b"data: [DONE]\n\n")
    else:
        assert reply.status == 503
        assert reply.json["error"]["code"] == "engine_lost"
        assert int(reply.headers["Retry-After"]) > 0


def check_serves_again(server: ServerProcess) -> None:
    server.wait_until_ready(20)
    reply = server.api(COMPLETIONS, {"prompt": "abc", "max_tokens": 3})
    assert reply.status == 200
    assert reply.json["choices"][0]["text"] == "abc"
    load = server.load()
    assert load["running"] == load["waiting"] == load["kvUsage"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a7_a_killed_engine_is_replaced_and_its_requests_are_told(start_server: StartServer, stream: bool) -> None:
    """sglang #39863, PR #24897, PR #36451; vllm #17972."""
    server = start_server(**SLOW, fake_load_seconds="1")
    running = Background(server, 400, stream=stream)
    first = server.engine_pid()
    os.kill(first, signal.SIGKILL)
    check_told(running.result(), stream=stream)
    refused = server.api(COMPLETIONS, {"prompt": "x"})
    assert refused.status == 503
    assert refused.json["error"]["code"] == "engine_restarting"
    assert int(refused.headers["Retry-After"]) > 0
    assert server.api("/health").status == server.ops("/readyz").status == 503
    assert server.ops("/livez").status == 200
    check_serves_again(server)
    assert server.engine_pid() != first
    assert b"forebay_engine_restarts_total{" in server.ops("/metrics").body
    assert "Traceback" not in server.log


def test_a7_a_hung_engine_is_replaced(start_server: StartServer) -> None:
    server = start_server("--hang-timeout", "1", **SLOW)
    running = Background(server, 400)
    os.kill(server.engine_pid(), signal.SIGSTOP)
    check_told(running.result(), stream=False)
    check_serves_again(server)


def test_an_engine_that_ends_again_and_again_ends_the_server(start_server: StartServer) -> None:
    server = start_server("--max-engine-restarts", "2", **SLOW)
    for _ in range(2):
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_for(lambda: server.ops("/readyz").status == 503, 10, "the end is noticed")
        check_serves_again(server)
    os.kill(server.engine_pid(), signal.SIGKILL)
    assert server.wait(15) == 15
    assert server.termination["reason"] == "EngineLost"
    assert "SIGKILL" in server.termination["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_without_restarts_a_killed_engine_ends_the_server_and_its_requests(
    start_server: StartServer, stream: bool
) -> None:
    server = start_server("--max-engine-restarts", "0", **SLOW)
    running = Background(server, 400, stream=stream)
    os.kill(server.engine_pid(), signal.SIGKILL)
    assert server.wait(10) == 15
    check_told(running.result(), stream=stream)
    assert server.termination["reason"] == "EngineLost"
    assert "Traceback" not in server.log


def test_without_restarts_a_hung_engine_ends_the_server(start_server: StartServer) -> None:
    server = start_server("--max-engine-restarts", "0", "--hang-timeout", "1", **SLOW)
    running = Background(server, 400)
    os.kill(server.engine_pid(), signal.SIGSTOP)
    assert server.wait(10) == 17
    check_told(running.result(), stream=False)
    assert server.termination["reason"] == "EngineHung"


def test_requests_wait_in_vain_only_until_the_engine_is_seen_to_be_gone(start_server: StartServer) -> None:
    """Of many requests, running and queued, every one is answered within seconds."""
    server = start_server("--max-num-seqs", "2", **SLOW)
    waiting = [Background(server, 400) for _ in range(6)]
    os.kill(server.engine_pid(), signal.SIGKILL)
    started = time.monotonic()
    for one in waiting:
        check_told(one.result(), stream=False)
    assert time.monotonic() - started < 10
    check_serves_again(server)


def test_restarts_are_bounded_within_a_window_and_come_ever_later() -> None:
    policy = RestartPolicy(3)
    assert [policy.delay_after_end(float(second)) for second in range(4)] == [0.25, 0.5, 1.0, None]
    assert policy.delay_after_end(WINDOW_SECONDS + 10) == 0.25
    assert RestartPolicy(0).delay_after_end(0.0) is None
    patient = RestartPolicy(100)
    assert [patient.delay_after_end(0.0) for _ in range(12)][-1] == 30.0
