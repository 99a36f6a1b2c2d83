"""Whatever is sent, the answer is no 500, the server lives, and the next request is served."""

import http.client
import json
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from tests.fakes.server_process import REAL, ServerProcess
from tests.fakes.tiny_real import write_tiny_real_model
from tests.test_server.api.fuzz import content_type, random_body

NUM_CLIENTS = 8
ALLOWED = {200, 400, 404, 413, 415, 429}


def send(
    connection: http.client.HTTPConnection, path: str, body: bytes, content_type: str = "application/json"
) -> tuple[int, str, bytes]:
    connection.request("POST", path, body, {"Content-Type": content_type})
    response = connection.getresponse()
    return response.status, response.headers["Content-Type"], response.read()


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def strict_json(text: bytes | str) -> Any:
    return json.loads(text, parse_constant=refuse_constant)


def problem(status: int, content_type: str, content: bytes) -> str | None:
    """What is wrong with an answer, if anything."""
    if status not in ALLOWED:
        return f"status {status}: {content[:300]!r}"
    try:
        if content_type.startswith("text/event-stream"):
            for event in content.decode().strip().split("\n\n"):
                data = event.splitlines()[-1].removeprefix("data: ")
                if data != "[DONE]" and "internal_server_error" in str(strict_json(data)):
                    return f"a failure in a stream: {data[:300]}"
        elif status == 200:
            strict_json(content)
        else:
            error = strict_json(content)["error"]
            if set(error) != {"message", "type", "param", "code"} or not error["message"]:
                return f"no error in OpenAI's shape: {content[:300]!r}"
    except (ValueError, KeyError) as reason:
        return f"not readable ({reason}): {content[:300]!r}"
    return None


def fuzz(server: ServerProcess, num_bodies: int) -> Counter[int]:
    """Send bodies from several clients; the numbers of each status."""
    seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in range(num_bodies):
        seeds.put(seed)
    statuses: Counter[int] = Counter()
    problems: list[str] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        while not problems:
            try:
                seed = seeds.get_nowait()
            except queue.Empty:
                break
            path, body = random_body(seed)
            try:
                answer = send(connection, path, body, content_type(seed))
            except (OSError, http.client.HTTPException) as error:
                problems.append(f"seed {seed}: {path} {body[:300]!r}: {error!r}")
                break
            statuses[answer[0]] += 1
            found = problem(*answer)
            if found is not None:
                problems.append(f"seed {seed}: {path} {body[:300]!r}: {found}")
            if seed % 20 == 0 and send(connection, "/v1/completions", b'{"prompt": "ok", "max_tokens": 1}')[0] != 200:
                problems.append(f"seed {seed}: {path} {body[:300]!r}: the next request is not served")
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(NUM_CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert problems == []
    return statuses


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The real engine with a context so short that no answer takes long."""
    folder = tmp_path_factory.mktemp("fuzz")
    running = ServerProcess(
        folder,
        [
            *("--model", str(write_tiny_real_model(folder / "tiny")), "--device", "cpu", "--dtype", "float32"),
            *("--max-model-len", "128", "--kv-cache-tokens", "2048", "--scheduling-policy", "priority"),
        ],
        program=REAL,
        wait_seconds=240,
    )
    yield running
    running.close()


@pytest.mark.timeout(7200)
def test_no_body_brings_500_or_ends_the_server(server: ServerProcess, is_long: bool) -> None:
    num_bodies = 10_000 if is_long else 300
    pid = server.engine_pid()
    statuses = fuzz(server, num_bodies)
    print(dict(statuses))
    assert sum(statuses.values()) == num_bodies
    assert statuses[200] > num_bodies / 20, "some bodies are good, or nothing behind the checks was tried"
    assert statuses[400] > num_bodies / 4
    assert server.engine_pid() == pid, "the engine was not started anew"
    load = server.load()
    assert (load["running"], load["waiting"], load["kvUsage"]) == (0, 0, 0)
