"""Sampling parameters from the request's body to the answer's tokens, with the real engine and a tiny model."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes.server_process import ServerProcess

COMPLETIONS = "/v1/completions"


def choices(server: ServerProcess, **fields: Any) -> list[Any]:
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 12, "ignore_eos": True} | fields
    reply = server.api(COMPLETIONS, body)
    assert reply.status == 200, reply.body
    answered: list[Any] = reply.json["choices"]
    return answered


def tokens(server: ServerProcess, **fields: Any) -> list[str]:
    (choice,) = choices(server, logprobs=0, skip_special_tokens=False, **fields)
    found: list[str] = choice["logprobs"]["tokens"]
    return found


def ids_of(server: ServerProcess, text: str) -> list[int]:
    ids: list[int] = server.api("/tokenize", {"prompt": text}).json["tokens"]
    return ids


def test_s4_bad_words_are_absent_from_every_choice(real_server: ServerProcess) -> None:
    """vllm #17975, #23886."""
    free = choices(real_server, n=4, temperature=1, seed=3, allowed_token_ids=ids_of(real_server, "xyz "))
    assert any("x" in choice["text"] for choice in free)
    banned = choices(
        real_server, n=4, temperature=1, seed=3, allowed_token_ids=ids_of(real_server, "xyz "), bad_words=["x"]
    )
    assert all(choice["text"] and "x" not in choice["text"] for choice in banned)
    pairs = choices(
        real_server, n=4, temperature=1, seed=3, allowed_token_ids=ids_of(real_server, "xyz"), bad_words=["xy", "xx"]
    )
    assert any("x" in choice["text"] for choice in pairs)
    assert all("xy" not in choice["text"] and "xx" not in choice["text"] for choice in pairs)


def test_s1_choices_of_one_seed_differ_and_repeat(real_server: ServerProcess) -> None:
    """vllm PR #11898."""
    first, second = (choices(real_server, n=4, temperature=1, seed=1) for _ in range(2))
    assert len({choice["text"] for choice in first}) == 4
    assert first == second


@pytest.mark.parametrize("ends", [{}, {"stop_token_ids": [5]}, {"ignore_eos": True, "stop_token_ids": [5]}])
def test_s5_min_tokens_comes_before_every_end(real_server: ServerProcess, ends: dict[str, Any]) -> None:
    """vllm #15967: the bias makes the end the likeliest token at once."""
    end_id = 259 if not ends else 5
    fields = {"ignore_eos": False, **ends, "logit_bias": {str(end_id): 100}}
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 12, **fields, "logprobs": 0}
    body["return_tokens_as_token_ids"] = True
    assert real_server.api(COMPLETIONS, body).json["usage"]["completion_tokens"] == 1
    reply = real_server.api(COMPLETIONS, body | {"min_tokens": 5}).json
    assert reply["usage"]["completion_tokens"] == 6
    assert reply["choices"][0]["finish_reason"] == "stop"
    picked = reply["choices"][0]["logprobs"]["tokens"]
    assert f"token_id:{end_id}" not in picked[:5]


def test_s10_repetition_penalty_with_one_token_of_everything(real_server: ServerProcess) -> None:
    """vllm #28307, #21731."""
    (choice,) = choices(real_server, prompt="a", max_tokens=1, repetition_penalty=1.3)
    assert choice["finish_reason"] == "length"
    assert len(set(tokens(real_server, repetition_penalty=2.0))) > 6


def test_l8_logprobs_stay_raw_and_strict_json_under_masks(real_server: ServerProcess) -> None:
    """Masked tokens must not become -Infinity in the body."""
    (choice,) = choices(real_server, allowed_token_ids=[5], logprobs=5)
    assert len(set(choice["logprobs"]["tokens"])) == 1
    assert all(-9999 < logprob < 0 for logprob in choice["logprobs"]["token_logprobs"])
    (free,) = choices(real_server, max_tokens=1, logprobs=5)
    best = max(free["logprobs"]["top_logprobs"][0].values())
    assert max(choice["logprobs"]["top_logprobs"][0].values()) == pytest.approx(best, abs=1e-5)


def test_s6_tiny_temperatures_and_heavy_biases_in_one_batch(real_server: ServerProcess) -> None:
    """vllm #1623, #22180."""
    texts = [
        choices(real_server, temperature=temperature, seed=4, logit_bias={"7": -100})[0]["text"]
        for temperature in (0, 1e-8, 1e-3, 2)
    ]
    assert texts[0] == texts[1]
    both = choices(real_server, prompt=["abc", "abd"], logit_bias={"7": -100})
    assert both[0]["text"] == texts[0]


@pytest.mark.parametrize(
    "rules",
    [
        {"allowed_token_ids": [5], "min_tokens": 1, "stop_token_ids": [5]},
        {"allowed_token_ids": [5, 259], "bad_words": ["&"], "min_tokens": 1},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_rules_that_exclude_every_token_are_refused_at_once(
    real_server: ServerProcess, rules: dict[str, Any], stream: bool
) -> None:
    reply = real_server.api(COMPLETIONS, {"prompt": "a", "stream": stream, **rules})
    assert reply.status == 400
    assert reply.json["error"]["param"] == "allowed_token_ids"
    assert "exclude every one" in reply.json["error"]["message"]
    assert choices(real_server)[0]["finish_reason"] == "length"


def test_rules_that_exclude_every_token_later_fail_that_request_alone(real_server: ServerProcess) -> None:
    """`ab` is forbidden and nothing but `b` is allowed by the grammar after the first token, `a`."""
    body = {"prompt": "q", "max_tokens": 8, "bad_words": ["ab"], "structured_outputs": {"regex": "abc"}}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(choices, real_server, max_tokens=100)
        reply = real_server.api(COMPLETIONS, body)
        assert reply.status == 400, reply.body
        assert "exclude every one" in reply.json["error"]["message"]
        events = real_server.api(COMPLETIONS, {**body, "stream": True}).body.decode().strip().split("\n\n")
        assert json.loads(events[-2].removeprefix("data: "))["error"]["type"] == "invalid_request_error"
        assert events[-1] == "data: [DONE]"
        assert beside.result()[0]["finish_reason"] == "length"
