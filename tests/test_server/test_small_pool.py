"""A real engine with a pool of 40 blocks, as its clients see it: named after the public reports that each test repeats.

Answers are compared with those of the same requests alone. float32, so that equal means equal.
"""

import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes.background import COMPLETIONS, all_at_once
from tests.fakes.server_process import REAL, ServerProcess, fetch, wait_for
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.tiny_real import write_tiny_real_model
from tests.test_server.test_metrics_reconcile import scrape, usage_of
from tests.test_server.test_pressure import is_idle, open_request

NUM_BLOCKS = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("small-pool")
    running = ServerProcess(
        folder,
        [
            *("--model", str(write_tiny_real_model(folder / "tiny")), "--device", "cpu", "--dtype", "float32"),
            *("--kv-cache-tokens", str(NUM_BLOCKS * 16), "--max-num-batched-tokens", "32"),
            *("--scheduling-policy", "priority"),
        ],
        program=REAL,
        environment={"OMP_NUM_THREADS": "1"},
        wait_seconds=240,
    )
    yield running
    running.close()


def reset(server: ServerProcess) -> None:
    assert fetch(f"http://127.0.0.1:{server.ops_port}/reset_prefix_cache", b"").status == 200


def complete(server: ServerProcess, **fields: Any) -> Any:
    reply = server.api(COMPLETIONS, {"ignore_eos": True, "temperature": 0, **fields})
    assert reply.status == 200, reply.body
    return reply.json


def text_of(server: ServerProcess, **fields: Any) -> str:
    return str(complete(server, **fields)["choices"][0]["text"])


def alone(server: ServerProcess, requests: list[dict[str, Any]]) -> list[str]:
    """Each answer with a cold cache and nobody else there."""
    texts = []
    for fields in requests:
        reset(server)
        texts.append(text_of(server, **fields))
    reset(server)
    return texts


def prompt_of(length: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(256) for _ in range(length)]


def test_p1_a_prompt_larger_than_the_pool_is_refused_and_the_next_is_served(server: ServerProcess) -> None:
    """vllm #35541, #39734; RBLN-SW/vllm-rbln #957."""
    refused = server.api(COMPLETIONS, {"prompt": prompt_of(1002), "max_tokens": 4})
    assert refused.status == 400
    assert refused.json["error"]["code"] == "context_length_exceeded"
    assert text_of(server, prompt="short", max_tokens=2) != ""
    most = complete(server, prompt=prompt_of(NUM_BLOCKS * 16 - 3), max_tokens=3)
    assert most["choices"][0]["finish_reason"] == "length"
    chat = server.api("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 600}], "temperature": 0})
    assert chat.json["choices"][0]["finish_reason"] in ("length", "stop"), "no livelock at the end of the pool"


@pytest.mark.parametrize("shared", [0, 32], ids=["p3", "p10"])
def test_p3_p10_preempted_answers_are_those_of_requests_alone(server: ServerProcess, shared: int) -> None:
    """vllm #16832; nano-vllm PR #211, #233: in a pool that fits three of six; streams as well, greedy and seeded."""
    requests = [
        {
            "prompt": prompt_of(shared) + prompt_of(40, seed=index + 1),
            "max_tokens": 150,
            **({"temperature": 1, "seed": index} if index % 3 == 2 else {}),
        }
        for index in range(6)
    ]
    expected = alone(server, requests)
    before = scrape(server)["forebay_num_preemptions_total"]

    def ask(index: int) -> tuple[str, int]:
        if index % 2 == 0:
            answer = complete(server, **requests[index])
            return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]
        fields = {"ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        reply = server.api(COMPLETIONS, {**fields, **requests[index]})
        chunks = [line[6:] for line in reply.body.decode().split("\n\n") if line.startswith("data: {")]
        return joined(chunks), usage_of(reply, stream=True)["completion_tokens"]

    with ThreadPoolExecutor(6) as pool:
        with all_at_once(server):
            answers = [pool.submit(ask, index) for index in range(6)]
        found = [answer.result() for answer in answers]
    assert scrape(server)["forebay_num_preemptions_total"] > before
    assert [tokens for _, tokens in found] == [150] * 6
    assert [text for text, _ in found] == expected


def joined(chunks: list[str]) -> str:
    return "".join(choice["text"] for chunk in chunks for choice in json.loads(chunk)["choices"])


def test_p4_the_important_request_is_answered_first(server: ServerProcess) -> None:
    """vllm #9342, #24365: mixed priorities in a pool that fits two or three of eight."""
    ended: list[int] = []

    def ask(priority: int) -> None:
        # the unimportant ones are longer, so that clients cannot mix up two ends that lie a step apart
        num_tokens = 80 if priority >= 7 else 60
        complete(server, prompt=prompt_of(150, seed=priority), max_tokens=num_tokens, priority=priority)
        ended.append(priority)

    with ThreadPoolExecutor(8) as pool, all_at_once(server):
        for priority in (3, 9, 8, 7, 2, 1, -1, -2):
            pool.submit(ask, priority)
    assert set(ended[-3:]) == {7, 8, 9}


def test_p6_blocks_of_clients_that_left_serve_the_next_ones_well(server: ServerProcess) -> None:
    """vllm #37076."""
    requests: list[dict[str, Any]] = [{"prompt": prompt_of(70, seed=index), "max_tokens": 12} for index in range(6)]
    expected = alone(server, requests)
    for fields, text in zip(requests, expected, strict=True):
        leaving = [open_request(server, stream=bool(index % 2)) for index in range(3)]
        wait_for(lambda: server.load()["running"] > 0, 10, "they run")
        for connection in leaving:
            connection.close()
        assert text_of(server, **fields) == text


def test_p8_a_salt_shares_with_nobody_else(server: ServerProcess) -> None:
    """vllm #44701, #30931, #56655."""
    reset(server)
    cached = [
        complete(server, prompt=prompt_of(100), max_tokens=1, **({"cache_salt": salt} if salt else {}))["usage"]
        for salt in ("", "a", "b", "a", "")
    ]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in cached] == [0, 0, 0, 96, 96]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 257])
def test_p9_lengths_at_the_borders_of_blocks(server: ServerProcess, length: int) -> None:
    """nano-vllm #144, PR #217, #66."""
    reset(server)
    cold, hot = (complete(server, prompt=prompt_of(length), max_tokens=6) for _ in range(2))
    assert cold["choices"][0]["text"] == hot["choices"][0]["text"]
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert hot["usage"]["prompt_tokens_details"]["cached_tokens"] == (length - 1) // 16 * 16


def test_p13_p17_chunks_prefixes_and_batches_at_once(server: ServerProcess) -> None:
    """sglang #38319, #8726; vllm #17954, #27034: chunks of 32, a shared prefix of 100, arrivals all together."""
    requests: list[dict[str, Any]] = [
        {"prompt": prompt_of(100) + prompt_of(10, seed=index + 1), "max_tokens": 10} for index in range(8)
    ]
    expected = alone(server, requests)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda fields: text_of(server, **fields), requests)) == expected


def test_a4_a5_p12_aborts_at_random_times_leave_nothing_behind(server: ServerProcess) -> None:
    """sglang #12414; vllm #22545, #29928; sglang #35270: queued, reading a prompt, or answering."""
    source = random.Random(5)
    expected = alone(server, [{"prompt": "after", "max_tokens": 5}])
    connections: list[socket.socket] = []
    for _ in range(60):
        n = source.choice([1, 1, 2])
        connections.append(open_request(server, stream=source.random() < 0.5, num_tokens=source.choice([2, 60]), n=n))
        if source.random() < 0.7:
            connections.pop(source.randrange(len(connections))).close()
    for connection in connections:
        connection.close()
    wait_for(lambda: is_idle(server), 30, "idle")
    found = scrape(server)
    assert found["forebay_num_requests_running"] == found["forebay_num_requests_waiting"] == 0
    assert found["forebay_kv_cache_usage_ratio"] == found["forebay_kv_cache_waste_ratio"] == 0
    assert [text_of(server, prompt="after", max_tokens=5)] == expected
    assert server.process.poll() is None


def test_p19_answers_that_reach_the_end_of_the_context_beside_clients_that_leave(server: ServerProcess) -> None:
    """vllm #38624, #46899, #49620: no placeholder is computed or given out, and nothing runs over."""
    context = NUM_BLOCKS * 16
    requests: list[dict[str, Any]] = [
        {"prompt": prompt_of(context - left, seed=left), "max_tokens": left, "return_tokens_as_token_ids": True}
        for left in (1, 2, 15, 16, 17, 40)
    ]

    def tokens_of(fields: dict[str, Any], **more: Any) -> list[str]:
        (choice,) = complete(server, **fields, logprobs=0, **more)["choices"]
        assert choice["finish_reason"] == "length"
        found: list[str] = choice["logprobs"]["tokens"]
        return found

    expected = []
    for fields in requests:
        reset(server)
        expected.append(tokens_of(fields))
    leaving = [open_request(server, stream=bool(index % 2)) for index in range(6)]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(tokens_of, fields, stop=["never said"]) for fields in requests]
        for connection in leaving:
            connection.close()
        assert [answer.result() for answer in answers] == expected
    for fields, tokens in zip(requests, expected, strict=True):
        assert len(tokens) == fields["max_tokens"]
        assert all(0 <= int(token.removeprefix("token_id:")) < VOCAB_SIZE for token in tokens)
        over = server.api(COMPLETIONS, {**fields, "max_tokens": fields["max_tokens"] + 1})
        assert (over.status, over.json["error"]["code"]) == (400, "context_length_exceeded")
