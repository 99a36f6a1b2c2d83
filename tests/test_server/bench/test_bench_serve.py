"""`forebay bench serve` against a real server process with the fake engine, and against servers that misbehave."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from forebay_server.bench.load import MAX_CONNECTION_FAILURES, Load, LoadPlan
from forebay_server.bench.records import RequestRecord
from forebay_server.bench.serve_command import main
from forebay_server.bench.workload import Prompt
from tests.fakes.server_process import ServerProcess

SMALL = ("--prompt-tokens", "10-20", "--output-tokens", "8", "--ignore-eos", "--vocab-size", "250")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bench-serve")
    running = ServerProcess(folder, ["--model", str(tiny_model)], wait_seconds=240)
    yield running
    running.close()


def run(capsys: pytest.CaptureFixture[str], port: int, *arguments: str) -> tuple[int, Any]:
    status = main(["--base-url", f"http://127.0.0.1:{port}/v1", *SMALL, "-o", "json", *arguments])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--concurrency", "4"], id="closed loop"),
        pytest.param(["--rate", "50"], id="Poisson"),
        pytest.param(["--burst-size", "5", "--burst-interval", "0.1"], id="bursts"),
        pytest.param(["--endpoint", "chat"], id="chat"),
    ],
)
def test_every_kind_of_load_is_answered_and_counted(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    status, found = run(capsys, server.port, "--num-requests", "12", "--slo", "ttft=60s", *arguments)
    assert status == 0
    assert (found["num_requests"], found["num_ok"], found["num_good"]) == (12, 12, 12)
    assert found["output_tokens"] == 12 * 8
    assert found["errors"] == {}
    assert found["ttft"]["count"] == 12
    assert found["settings"]["prompts"] == ("random text" if "chat" in arguments else "random ids")
    assert found["prompt_tokens"] >= 12 * 10


def test_a_person_gets_a_table_a_picture_and_every_request(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture, requests = tmp_path / "load.png", tmp_path / "requests.jsonl"
    url = f"http://127.0.0.1:{server.port}/v1"
    files = ("--png", str(picture), "--requests-file", str(requests))
    assert main(["--base-url", url, *SMALL, "--num-requests", "6", "--slo", "ttft=1ms,e2e=60s", *files]) == 0
    shown = capsys.readouterr().out
    for name in ("time to first token", "inter-token latency", "output tokens/s", "goodput"):
        assert name in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [json.loads(line)["output_tokens"] for line in requests.read_text().splitlines()] == [8] * 6


def test_a_model_of_another_name_is_said(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{server.port}/v1"
    assert main(["--base-url", url, *SMALL, "--model", "other", "--num-requests", "2"]) == 3
    assert "http 404" in capsys.readouterr().err


def test_requests_that_fail_in_between_are_counted_by_kind(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "fine"}\n{"prompt_token_ids": [260]}\n')  # 260 makes the fake engine fail
    status, found = run(capsys, server.port, "--prompts", str(prompts), "--num-requests", "6")
    assert status == 1
    assert found["num_ok"] == 3
    assert sum(found["errors"].values()) == 3


def test_nobody_there_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert main(["--base-url", f"http://127.0.0.1:{port}/v1", "--num-requests", "2"]) == 3
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in said
    assert "is the server running" in said


@contextmanager
def endpoint(handler: Handler) -> Iterator[int]:
    """A server in a thread that lists a model and answers completions with `handler`; its port."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found: list[int] = []

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def start() -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", handler)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.append(runner.addresses[0][1])
        ready.set()
        return runner

    def serve() -> None:
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(30)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


async def stream(request: web.Request, *events: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for content in events:
        await response.write(f"data: {content}\n\n".encode())
    await response.write_eof()
    return response


TOKEN = '{"choices": [{"index": 0, "text": "a", "finish_reason": null}]}'


async def cut_short(request: web.Request) -> web.StreamResponse:
    return await stream(request, TOKEN, TOKEN)


async def says_error(request: web.Request) -> web.StreamResponse:
    return await stream(request, TOKEN, '{"error": {"message": "the engine failed"}}', "[DONE]")


async def says_nothing(request: web.Request) -> web.StreamResponse:
    return await stream(request, "[DONE]")


async def talks_nonsense(request: web.Request) -> web.StreamResponse:
    return await stream(request, "<html>")


async def is_full(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "the queue is full"}}, status=429)


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return await stream(request, TOKEN, "[DONE]")


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (cut_short, "broken stream"),
        (says_error, "error event"),
        (says_nothing, "empty answer"),
        (talks_nonsense, "bad answer"),
        (is_full, "http 429"),
        (hangs, "timeout"),
    ],
)
def test_every_way_to_fail_has_its_name(handler: Handler, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with endpoint(handler) as port:
        status, found = run(capsys, port, "--num-requests", "3", "--warmup", "0", "--idle-timeout", "0.5")
    assert status == 3
    assert found["errors"] == {kind: 3}


def test_a_server_that_takes_no_ids_gets_words(capsys: pytest.CaptureFixture[str]) -> None:
    async def takes_text(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not isinstance(body["prompt"], str):
            return web.json_response({"error": {"message": "a text, please"}}, status=400)
        return await stream(request, TOKEN, TOKEN, "[DONE]")

    with endpoint(takes_text) as port:
        status, found = run(capsys, port, "--num-requests", "2")
        assert (status, found["settings"]["prompts"]) == (0, "random text")
        assert found["output_tokens"] == 4  # counted by chunks where the server does not say
        assert main(["--base-url", f"http://127.0.0.1:{port}/v1", "--prompt-form", "ids", "--num-requests", "1"]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "0"],
        ["--rate", "1", "--concurrency", "2"],
        ["--concurrency", "1", "--max-concurrency", "2"],
        ["--slo", "ttft"],
        ["--prompt-tokens", "none"],
        ["--endpoint", "chat", "--prompt-form", "ids"],
        ["--prompts", "x", "--shared-prefix-tokens", "5"],
    ],
)
def test_bad_command_lines(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def endless() -> Iterator[Prompt]:
    while True:
        yield Prompt("a", 1, 1)


async def test_a_closed_loop_keeps_its_concurrency() -> None:
    in_flight, seen = 0, []

    async def send(_: Prompt, record: RequestRecord) -> None:
        nonlocal in_flight
        in_flight += 1
        seen.append(in_flight)
        await asyncio.sleep(0)
        in_flight -= 1

    load = Load(LoadPlan(num_requests=20, duration=None, concurrency=3), endless(), send, lambda _: None)
    await load.run()
    assert len(load.records) == 20
    assert max(seen) == 3


async def test_a_load_ends_when_the_server_is_gone() -> None:
    async def send(_: Prompt, record: RequestRecord) -> None:
        record.error = "connection"

    load = Load(LoadPlan(num_requests=1000, duration=None, concurrency=2), endless(), send, lambda _: None)
    await load.run()
    assert load.server_is_gone
    assert len(load.records) < MAX_CONNECTION_FAILURES + 3


async def test_an_interrupted_load_tells_what_it_knows() -> None:
    async def send(_: Prompt, record: RequestRecord) -> None:
        if record.index:
            await asyncio.sleep(60)

    load = Load(LoadPlan(num_requests=3, duration=None, rate=1000.0), endless(), send, lambda _: None)
    task = asyncio.create_task(load.run())
    while len(load.records) < 3:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.error for record in load.records] == [None, "interrupted", "interrupted"]


async def test_an_open_loop_can_be_held_to_so_many_at_once() -> None:
    in_flight, most = 0, 0

    async def send(_: Prompt, record: RequestRecord) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.001)
        in_flight -= 1

    plan = LoadPlan(num_requests=30, duration=None, burst_size=30, max_concurrency=4)
    load = Load(plan, endless(), send, lambda _: None)
    await load.run()
    assert (len(load.records), most) == (30, 4)
