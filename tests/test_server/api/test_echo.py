"""The prompt in the answer: echo and the log-probabilities of its tokens, with the real engine and a tiny model."""

import json
from typing import Any

import openai
import pytest

from tests.fakes.server_process import ServerProcess

COMPLETIONS = "/v1/completions"
PROMPT = "a b c é漢🙂 DEF! " + "long enough for several blocks of the cache, " * 2


def complete(server: ServerProcess, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "ignore_eos": True} | fields
    reply = server.api(COMPLETIONS, body)
    assert reply.status == 200, reply.body
    return reply.json


def test_echo_begins_the_text_and_is_not_counted_as_an_answer(real_server: ServerProcess) -> None:
    plain, echoed = complete(real_server, n=2), complete(real_server, n=2, echo=True)
    assert [choice["text"] for choice in echoed["choices"]] == [PROMPT + choice["text"] for choice in plain["choices"]]
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("max_tokens", [0, 8])
def test_l1_a_stream_echoes_what_the_whole_answer_does(real_server: ServerProcess, max_tokens: int) -> None:
    """vllm PR #47815: text_offset was off by the prompt's length."""
    fields = {"echo": True, "logprobs": 1, "max_tokens": max_tokens, "allowed_token_ids": list(range(66, 80))}
    whole = complete(real_server, **fields)["choices"][0]
    body = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
    events = real_server.api(COMPLETIONS, body).body.decode().strip().split("\n\n")
    parts = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-1]]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset"):
        joined = [value for part in parts for value in part["logprobs"][name]]
        assert joined == whole["logprobs"][name]
    tokens, offsets = whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"]
    for token, start, end in zip(tokens, offsets, [*offsets[1:], len(whole["text"])], strict=True):
        assert "\ufffd" in token or whole["text"][start:end] == token


def test_l2_tokens_of_an_echoed_prompt_are_those_of_the_tokenizer(real_server: ServerProcess) -> None:
    """vllm #5334, #6521; sglang #4892: echo with max_tokens 0."""
    answer = complete(real_server, prompt="a b c", echo=True, logprobs=2, max_tokens=0)
    (choice,) = answer["choices"]
    strings = real_server.api("/tokenize", {"prompt": "a b c", "return_token_strs": True}).json["token_strs"]
    assert (choice["text"], choice["finish_reason"]) == ("a b c", "length")
    assert choice["logprobs"]["tokens"] == strings
    assert choice["logprobs"]["token_logprobs"][0] is choice["logprobs"]["top_logprobs"][0] is None
    assert all(-9999 < logprob < 0 for logprob in choice["logprobs"]["token_logprobs"][1:])
    assert all(2 <= len(top) <= 3 for top in choice["logprobs"]["top_logprobs"][1:])
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == 5


def test_l6_prompt_logprobs_are_the_same_cold_and_hot(real_server: ServerProcess) -> None:
    """vllm #42019, PR #42245; #3251, #3914, #8268."""
    prompt = "never seen before: " + PROMPT
    cold = complete(real_server, prompt=prompt, prompt_logprobs=1)
    plain = complete(real_server, prompt=prompt)
    hot = complete(real_server, prompt=prompt, prompt_logprobs=1)
    assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    scores = cold["choices"][0]["prompt_logprobs"]
    assert len(scores) == cold["usage"]["prompt_tokens"]
    assert scores[0] is None
    assert hot["choices"][0]["prompt_logprobs"] == scores
    assert "prompt_logprobs" not in plain["choices"][0]
    assert hot["choices"][0]["logprobs"] is None
    ids = real_server.api("/tokenize", {"prompt": prompt}).json["tokens"]
    assert all(str(token_id) in entry for token_id, entry in zip(ids[1:], scores[1:], strict=True))


def test_the_official_client_reads_an_echo(real_server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{real_server.port}/v1", api_key="none") as client:
        answer = client.completions.create(model="tiny", prompt=["ab", "cde"], echo=True, max_tokens=0, logprobs=0)
    assert [choice.text for choice in answer.choices] == ["ab", "cde"]
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.tokens == ["c", "d", "e"]
