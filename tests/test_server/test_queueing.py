"""Bounds on the queue, and what a request may say about its place in it. With the fake engine."""

import pytest

from tests.fakes.background import COMPLETIONS, Background
from tests.fakes.server_process import wait_for
from tests.test_server.conftest import StartServer
from tests.test_server.test_pressure import is_idle, open_request


def test_p4_a_priority_is_refused_where_it_would_have_no_effect(start_server: StartServer) -> None:
    """vllm #24365; the other half of P-4 is in the scheduler's tests."""
    in_turn = start_server()
    refused = in_turn.api(COMPLETIONS, {"prompt": "abc", "priority": 1})
    assert refused.status == 400
    assert refused.json["error"]["param"] == "priority"
    assert "--scheduling-policy priority" in refused.json["error"]["message"]
    assert in_turn.api("/v1/embeddings", {"input": "abc", "priority": -1}).status == 400
    assert in_turn.api(COMPLETIONS, {"prompt": "abc", "priority": 0}).status == 200
    by_priority = start_server("--scheduling-policy", "priority")
    assert by_priority.api(COMPLETIONS, {"prompt": "abc", "priority": -5}).status == 200
    assert by_priority.api(COMPLETIONS, {"prompt": "abc", "priority": 2**40}).status == 400


def test_a9_prompt_tokens_are_bounded_and_every_choice_counts(start_server: StartServer) -> None:
    """vllm PR #49445: n counts fully, all or nothing, and what ended makes room."""
    server = start_server("--max-queued-tokens", "10", fake_step_seconds="0.05")
    first = open_request(server, stream=True, n=2)  # 2 times 3 tokens
    wait_for(lambda: server.load()["running"] == 2, 10, "the first runs")
    assert server.api(COMPLETIONS, {"prompt": "abcd", "max_tokens": 1}).status == 200
    for body in ({"prompt": "abcde"}, {"prompt": "ab", "n": 3}, {"prompt": ["abc", "de"]}):
        refused = server.api(COMPLETIONS, {**body, "max_tokens": 1})
        assert refused.status == 429, body
        assert refused.json["error"]["code"] == "queue_full"
        assert int(refused.headers["Retry-After"]) > 0
    never = server.api(COMPLETIONS, {"prompt": "abcdef", "n": 2, "max_tokens": 1})
    assert never.status == 400, "no waiting helps"
    assert "12 tokens" in never.json["error"]["message"]
    first.close()
    wait_for(lambda: is_idle(server), 2, "the first is gone")
    assert server.api(COMPLETIONS, {"prompt": "abcde", "n": 2, "max_tokens": 1}).status == 200


def test_a_queue_that_is_full_of_tokens_refuses_before_it_looks_at_a_prompt(start_server: StartServer) -> None:
    server = start_server("--max-queued-tokens", "6", fake_step_seconds="0.05")
    first = open_request(server, stream=True, n=2)
    wait_for(lambda: server.load()["running"] == 2, 10, "the first runs")
    assert server.api(COMPLETIONS, {"prompt": [99_999]}).status == 429, "a bad token id would be 400"
    assert server.api("/v1/embeddings", {"input": "abc"}).status == 429
    first.close()
    wait_for(lambda: is_idle(server), 2, "the first is gone")
    assert server.api(COMPLETIONS, {"prompt": [99_999]}).status == 400


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_ends_with_504(start_server: StartServer, stream: bool) -> None:
    server = start_server("--request-timeout", "0.5", fake_step_seconds="0.02")
    assert server.api(COMPLETIONS, {"prompt": "abc", "max_tokens": 3, "stream": stream}).status == 200
    reply = Background(server, 400, stream=stream).result()
    if stream:
        assert reply.status == 200
        assert b'"code":"request_timeout"' in reply.body
        assert reply.body.endswith(b"data: [DONE]\n\n")
    else:
        assert reply.status == 504
        assert reply.json["error"]["code"] == "request_timeout"
        assert reply.headers["X-Should-Retry"] == "false"
    wait_for(lambda: is_idle(server), 2, "it is gone from the engine")
    metrics = server.ops("/metrics").body.decode()
    model = server.api("/v1/models").json["data"][0]["id"]
    assert f'forebay_request_success_total{{finished_reason="error",model_name="{model}"}} 1.0' in metrics
