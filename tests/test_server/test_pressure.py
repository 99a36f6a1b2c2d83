"""More requests than there is room for, and clients that leave. With the fake engine."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.fakes.background import all_at_once
from tests.fakes.server_process import ServerProcess, wait_for
from tests.test_server.conftest import StartServer

COMPLETIONS = "/v1/completions"


def open_request(server: ServerProcess, *, stream: bool, num_tokens: int = 400, n: int = 1) -> socket.socket:
    """Send a long request and leave the connection open."""
    body = json.dumps(
        {"prompt": "abc", "ignore_eos": True, "max_tokens": num_tokens, "stream": stream, "n": n}
    ).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return connection


def is_idle(server: ServerProcess) -> bool:
    load = server.load()
    return bool(load["running"] == load["waiting"] == load["kvUsage"] == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a2_a5_a_client_that_leaves_frees_its_places_within_a_second(start_server: StartServer, stream: bool) -> None:
    """vllm #54947, #22545: also of requests that are not streams, and the gauges go back to zero."""
    server = start_server("--max-num-seqs", "4", fake_step_seconds="0.05")
    connections = [open_request(server, stream=stream, n=2) for _ in range(4)]
    wait_for(lambda: server.load()["running"] + server.load()["waiting"] == 8, 10, "all are there")
    wait_for(lambda: server.load()["running"] == 4, 5, "four run")
    for connection in connections:
        connection.close()
    wait_for(lambda: is_idle(server), 1, "idle again")
    metrics = server.ops("/metrics").body.decode()
    model = server.api("/v1/models").json["data"][0]["id"]
    assert f'forebay_request_success_total{{finished_reason="abort",model_name="{model}"}} 8.0' in metrics


async def test_a8_the_surplus_is_refused_at_once_and_the_rest_is_right(start_server: StartServer) -> None:
    """vllm #18826: 600 requests against 40 places."""
    server = start_server("--max-queued-requests", "40", fake_step_seconds="0.01")
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, limits=limits) as client:

        async def one(number: int) -> tuple[int, httpx.Response]:
            return number, await client.post(COMPLETIONS, json={"prompt": f"request {number}", "max_tokens": 50})

        answers = await asyncio.gather(*map(one, range(600)))
    served = [(number, answer) for number, answer in answers if answer.status_code == 200]
    refused = [answer for _, answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == 600
    assert len(served) >= 40
    assert refused
    for number, answer in served:
        assert answer.json()["choices"][0]["text"] == f"request {number}"
    for answer in refused:
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert answer.json()["error"]["type"] == "rate_limit_error"
    assert is_idle(server)


def test_a9_choices_count_fully_and_are_taken_or_refused_together(start_server: StartServer) -> None:
    """vllm PR #49445."""
    server = start_server("--max-queued-requests", "10", fake_step_seconds="0.05")
    first = open_request(server, stream=True, n=6)
    wait_for(lambda: server.load()["running"] == 6, 10, "the first runs")
    assert server.api(COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2}).status == 429
    assert server.api(COMPLETIONS, {"prompt": ["a", "b"], "n": 2}).status == 200
    never = server.api(COMPLETIONS, {"prompt": "a", "n": 11})
    assert never.status == 400, "no waiting helps"
    first.close()


@pytest.mark.parametrize("closes", [False, True])
def test_a8_a_long_body_that_is_refused_disturbs_nothing_after_it(start_server: StartServer, closes: bool) -> None:
    """The refusal comes before the body does; what follows on a connection that stays is served as ever."""
    server = start_server("--max-queued-requests", "1", fake_step_seconds="0.01")
    first = open_request(server, stream=True)
    wait_for(lambda: server.load()["running"] == 1, 10, "the first runs")
    body = json.dumps({"prompt": "x" * 3_000_000}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: long\r\n"
    head += "Connection: close\r\n" if closes else ""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:1000])
        if not closes:
            refused = read_answer(connection)  # before the rest is sent
        connection.sendall(body[1000:])
        if closes:
            refused = read_answer(connection)
            assert connection.recv(1) == b""
        assert b" 429 " in refused.splitlines()[0]
        assert b"x-request-id: long" in refused
        assert b'"code":"queue_full"' in refused
        first.close()
        wait_for(lambda: is_idle(server), 2, "idle")
        if not closes:
            following = json.dumps({"prompt": "and now"}).encode()
            connection.sendall(f"{head}Content-Length: {len(following)}\r\n\r\n".encode() + following)
            served = read_answer(connection)
            assert b" 200 " in served.splitlines()[0]
            assert b'"text":"and now"' in served


def read_answer(connection: socket.socket) -> bytes:
    """One with a stated length."""
    connection.settimeout(20)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    assert len(body) == length
    return head + b"\r\n\r\n" + body


def test_who_may_not_come_in_is_told_so_though_the_queue_is_full(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    log = tmp_path / "requests.jsonl"
    flags = ("--api-key-file", str(tmp_path / "keys"), "--request-log", str(log))
    server = start_server("--max-queued-requests", "1", *flags, fake_step_seconds="1")
    key = {"Authorization": "Bearer secret"}
    waiting = threading.Thread(target=server.api, args=(COMPLETIONS, {"prompt": "a", "max_tokens": 2}, key))
    waiting.start()
    wait_for(lambda: server.load()["running"] == 1, 10, "the first runs")
    assert server.api(COMPLETIONS, {"prompt": "a"}).status == 401
    assert server.api(COMPLETIONS, {"prompt": "a"}, {**key, "X-Request-Id": "mine"}).status == 429
    assert server.api("/tokenize", {"prompt": "a"}, key).status == 200
    wait_for(lambda: "were refused" in server.log, 5, "the operator is told")
    assert "1 requests were refused with 429" in server.log
    waiting.join()
    wait_for(lambda: log.read_text().count("\n") == 4, 5, "all four are written")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == [401, 429, 200, 200]
    assert lines[1]["request_id"] == "mine"
    assert "forebay_admission_rejections_total" in server.ops("/metrics").body.decode()


def test_heads_without_end_are_refused(start_server: StartServer) -> None:
    server = start_server()
    for endless in (b"GET /" + b"x" * 100_000, b"GET /health HTTP/1.1\r\nX-Long: " + b"y" * 100_000):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(endless)
            assert b" 431 " in read_answer(connection).splitlines()[0]
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    many = {f"X-{number}": "z" * 100 for number in range(90)}
    assert server.api("/v1/models", headers=many).status == 200


def test_a_request_that_gets_no_place_in_time_is_503(start_server: StartServer) -> None:
    server = start_server("--max-num-seqs", "1", "--queue-timeout", "0.5", fake_step_seconds="0.05")
    first = open_request(server, stream=True)
    wait_for(lambda: server.load()["running"] == 1, 10, "the first runs")
    for stream in (False, True):
        started = time.monotonic()
        late = server.api(COMPLETIONS, {"prompt": "a", "stream": stream})
        assert late.status == 503
        assert late.json["error"]["code"] == "queue_timeout"
        assert int(late.headers["Retry-After"]) > 0
        assert 0.4 < time.monotonic() - started < 20  # far from the default of 60
    wait_for(lambda: server.load()["waiting"] == 0, 2, "the late ones are gone")
    first.close()


def test_the_probes_and_the_scraper_are_answered_under_load(start_server: StartServer) -> None:
    server = start_server(fake_step_seconds="0.002")
    with all_at_once(server):  # so that none has ended before the last one came
        connections = [open_request(server, stream=True) for _ in range(50)]
    wait_for(lambda: server.load()["running"] >= 50, 10, "all run")
    slowest = 0.0
    for _ in range(20):
        for path in ("/livez", "/readyz", "/metrics", "/load"):
            started = time.monotonic()
            assert server.ops(path).status == 200
            slowest = max(slowest, time.monotonic() - started)
    assert slowest < 5.0  # nothing stands still; how quick it is, is measured elsewhere
    for connection in connections:
        connection.close()


def test_token_counters_agree_with_the_answers(start_server: StartServer) -> None:
    server = start_server()
    usages = [server.api(COMPLETIONS, {"prompt": "x" * length, "n": 2}).json["usage"] for length in (1, 5, 20)]
    metrics = server.ops("/metrics").body.decode()
    values = {
        line.rpartition(" ")[0].partition("{")[0]: float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line and not line.startswith("#")
    }
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert values["forebay_generation_tokens_total"] == values["vllm:generation_tokens_total"] == generated
    assert values["forebay_prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert values["forebay_time_to_first_token_seconds_count"] == 6
    assert values["forebay_inter_token_latency_seconds_count"] == generated - 6
    assert values["forebay_request_generation_tokens_sum"] == generated
    assert values["forebay_e2e_request_latency_seconds_count"] == 6
    assert values["forebay_request_queue_time_seconds_count"] == 6
