"""What cannot be served gets 4xx in OpenAI's shape, and the next request gets 200."""

import http.client
import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import ValidationError

from forebay_server.api.openai_types import CompletionBody
from tests.fakes.server_process import ServerProcess

USER = {"role": "user", "content": "hi"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

BAD_REQUESTS: list[tuple[str, Any, str | None]] = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    (CHAT, {"messages": [USER], "tools": []}, "tools"),
    (CHAT, {"messages": [USER], "tool_choice": "auto"}, "tool_choice"),
    (CHAT, {"messages": [USER], "response_format": {"type": "structural_tag"}}, "response_format.type"),
    (CHAT, {"messages": [USER], "top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    (CHAT, {"messages": [USER], "stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"messages": [USER], "logit_bias": {"320": 1}}, "logit_bias"),
    (CHAT, {"messages": [USER], "logit_bias": {"five": 1}}, "logit_bias"),
    (CHAT, {"messages": [USER], "logit_bias": {"-1": 1}}, "logit_bias"),
    (CHAT, {"messages": [USER], "logit_bias": {"5": 101}}, "logit_bias"),
    (CHAT, {"messages": [USER], "allowed_token_ids": [5, 320]}, "allowed_token_ids"),
    (CHAT, {"messages": [USER], "allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    (CHAT, {"messages": [USER], "stop_token_ids": [320]}, "stop_token_ids"),
    (CHAT, {"messages": [USER], "bad_words": [""]}, "bad_words[0]"),
    (CHAT, {"messages": [USER], "bad_words": ["x"] * 129}, "bad_words"),
    (CHAT, {"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": ["x", 5]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": [320]}, "prompt"),
    (COMPLETIONS, {"prompt": [10**30]}, "prompt"),
    (COMPLETIONS, {"prompt": "x", "n": 0}, "n"),
    (COMPLETIONS, {"prompt": "x", "n": 5_000_000}, "n"),
    (COMPLETIONS, {"prompt": "x", "n": True}, "n"),
    (COMPLETIONS, {"prompt": ["x"] * 300}, "n"),
    (COMPLETIONS, {"prompt": "x", "temperature": -1}, "temperature"),
    (COMPLETIONS, {"prompt": "x", "temperature": "1"}, "temperature"),
    (COMPLETIONS, {"prompt": "x", "top_p": 0}, "top_p"),
    (COMPLETIONS, {"prompt": "x", "top_k": -2}, "top_k"),
    (COMPLETIONS, {"prompt": "x", "top_k": 2**64}, "top_k"),
    (COMPLETIONS, {"prompt": "x", "seed": 2**64}, "seed"),
    (COMPLETIONS, {"prompt": "x", "stop": ""}, "stop"),
    (COMPLETIONS, {"prompt": "x", "stop": ["a", ""]}, "stop[1]"),
    (COMPLETIONS, {"prompt": "x", "stop": ["x"] * 500_000}, "stop"),
    (CHAT, {"messages": [USER], "echo": True}, "echo"),
    (CHAT, {"messages": [USER], "prompt_logprobs": 21}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": -1, "echo": True}, "max_tokens"),
    (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix"),
    (COMPLETIONS, {"prompt": "x", "best_of": 2}, "best_of"),
    (COMPLETIONS, {"prompt": "x", "repetition_penalty": 0}, "repetition_penalty"),
    (COMPLETIONS, {"prompt": "x", "repetition_penalty": 2.1}, "repetition_penalty"),
    (COMPLETIONS, {"prompt": "x", "logprobs": 400_000}, "logprobs"),
    (COMPLETIONS, {"prompt": "x", "min_tokens": 20}, "min_tokens"),
    (COMPLETIONS, b'{"prompt": "x", "temperature": NaN}', "temperature"),
    (COMPLETIONS, b'{"prompt": "x", "temperature": 1e999}', "temperature"),
    (COMPLETIONS, b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}", None),
    (COMPLETIONS, {"prompt": "\ud800"}, None),
    (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, None),
    (COMPLETIONS, {"prompt": "x", "cache_salt": "\ud800"}, None),
    (COMPLETIONS, {"prompt": "x", "user": "\ud800"}, None),
    (COMPLETIONS, b'{"prompt": "x", "user": "\xed\xa0\x80"}', None),
    (COMPLETIONS, b'{"prompt": ', None),
    (COMPLETIONS, b'{"prompt": "\xff"}', None),
    (COMPLETIONS, b"[" * 100_000, None),
    (COMPLETIONS, b"", None),
    (COMPLETIONS, b"5", None),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": [USER]}, "prompt"),
    ("/detokenize", {"tokens": [5, 100_000]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
]


def name_of(value: Any) -> str:
    text = (
        value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else json.dumps(value)
    )
    return text[:50]


@pytest.mark.parametrize(("path", "body", "param"), BAD_REQUESTS, ids=name_of)
def test_bad_requests_are_400_naming_the_field(server: ServerProcess, path: str, body: Any, param: str | None) -> None:
    started = time.monotonic()
    reply = server.api(path, body, method="POST")
    assert reply.status == 400, reply.body
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]
    assert len(error["message"]) < 500
    assert time.monotonic() - started < 5
    following = server.api(COMPLETIONS, {"prompt": "ok"})
    assert following.status == 200, following.body
    assert following.json["choices"][0]["text"] == "ok"


def test_a_list_of_another_kind_is_left_at_its_first_item() -> None:
    """Else an error for each of 100,000 token ids is made, and thrown away, while everybody waits."""
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate({"prompt": [None] * 1000})
    assert caught.value.error_count() < 10


def test_values_that_ask_for_nothing_are_accepted(server: ServerProcess) -> None:
    neutral = {
        "logit_bias": {},
        "best_of": 1,
        "suffix": None,
        "echo": False,
        "repetition_penalty": 1.0,
        "allowed_token_ids": [],
        "bad_words": [],
        "response_format": {"type": "text"},
        "top_k": -1,
        "stop": [],
        "logprobs": None,
        "user": "me",
        "a_field_of_another_server": {"x": 1},
    }
    assert server.api(COMPLETIONS, {"prompt": "ok", **neutral}).status == 200
    chat = {
        "messages": [USER],
        "tools": None,
        "tool_choice": "none",
        "modalities": ["text"],
        "parallel_tool_calls": True,
    }
    assert server.api(CHAT, chat).status == 200


def test_an_id_outside_the_vocabulary_is_named_with_the_limit(server: ServerProcess) -> None:
    for fields in ({"logit_bias": {"320": 1}}, {"allowed_token_ids": [320]}, {"stop_token_ids": [320]}):
        error = server.api(COMPLETIONS, {"prompt": "x", **fields}).json["error"]
        assert error["message"] == "token id 320 is outside the vocabulary; ids are 0 to 319"


def test_v13_context_overflow_tells_exact_numbers(server: ServerProcess) -> None:
    """vllm #33418: the context holds 512 tokens; one token a character."""

    def post(num_prompt_tokens: int, **fields: Any) -> Any:
        return server.api(COMPLETIONS, {"prompt": "x" * num_prompt_tokens, "ignore_eos": True, **fields})

    too_much = post(509, max_tokens=10)
    assert too_much.status == 400
    assert too_much.json["error"]["code"] == "context_length_exceeded"
    assert too_much.json["error"]["param"] == "max_tokens"
    for number in ("512", "509", "10", "519"):
        assert number in too_much.json["error"]["message"]
    full = post(512)
    assert full.status == 400
    assert full.json["error"]["param"] == "prompt"
    last = post(511)
    assert last.json["choices"][0]["finish_reason"] == "length"
    assert last.json["usage"]["completion_tokens"] == 1
    exact = post(502, max_tokens=10)
    assert exact.json["usage"]["completion_tokens"] == 10
    huge = post(1_000_000)
    assert huge.json["error"]["code"] == "context_length_exceeded"
    assert post(600, stream=True).status == 400, "before a stream begins"


def test_unknown_model_and_path_and_verb_and_kind_of_body(server: ServerProcess, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown_model:
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "x"}])
    assert unknown_model.value.code == "model_not_found"
    assert unknown_model.value.param == "model"
    assert server.api("/v1/nothing").json["error"]["type"] == "not_found_error"
    assert server.api("/v1/nothing").status == 404
    wrong_verb = server.api(CHAT, {"messages": [USER]}, method="PUT")
    assert wrong_verb.status == 405
    assert "PUT" in wrong_verb.json["error"]["message"]
    form = server.api(CHAT, b"a=b", {"Content-Type": "application/x-www-form-urlencoded"})
    assert form.status == 415
    too_long = server.api(COMPLETIONS, b'{"prompt": "' + b"x" * 9_000_000 + b'"}')
    assert too_long.status == 413
    assert all(reply.json["error"]["message"] for reply in (form, too_long))


def test_a_long_body_without_a_stated_length_is_413(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    parts = iter([b'{"prompt": "', b"x" * 9_000_000])
    connection.request("POST", COMPLETIONS, parts, {"Content-Type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_request_ids_are_echoed_or_made(server: ServerProcess) -> None:
    body = {"prompt": "x"}
    assert server.api(COMPLETIONS, body, {"X-Request-Id": "mine-7"}).headers["X-Request-Id"] == "mine-7"
    made = {server.api(COMPLETIONS, body).headers["X-Request-Id"] for _ in range(3)}
    assert len(made) == 3
    assert server.api(COMPLETIONS, {"prompt": ""}, {"X-Request-Id": "bad-1"}).headers["X-Request-Id"] == "bad-1"
    assert server.api(COMPLETIONS, body, {"X-Request-Id": "x" * 200}).headers["X-Request-Id"] != "x" * 200


def test_models_tokens_and_versions(server: ServerProcess, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")
    tokens = server.api("/tokenize", {"prompt": "a🙂<|end|>", "return_token_strs": True}).json
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) == 6
    assert tokens["max_model_len"] == 512
    assert server.api("/detokenize", {"tokens": tokens["tokens"]}).json == {"prompt": "a🙂<|end|>"}
    for path in ("/health", "/ping", "/version", "/metrics", "/load", "/openapi.json"):
        assert server.api(path).status == 200, path
    assert server.api("/health", method="HEAD").status == 200


@pytest.fixture
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("# comment\nfirst-key\n\n")
    return path


def test_api_keys_guard_v1_and_are_read_again(tiny_model: Any, key_file: Any, tmp_path: Any) -> None:
    server = ServerProcess(tmp_path, ["--model", str(tiny_model), "--api-key-file", str(key_file)])
    try:

        def status(key: str | None, path: str = "/v1/models") -> int:
            return server.api(path, headers={} if key is None else {"Authorization": f"Bearer {key}"}).status

        refused = server.api("/v1/models")
        assert refused.status == 401
        assert refused.json["error"]["code"] == "invalid_api_key"
        assert [status("first-key"), status("wrong"), status("# comment"), status("")] == [200, 401, 401, 401]
        assert status(None, "/health") == status(None, "/metrics") == 200
        key_file.write_text("second-key\n")
        time.sleep(1.2)
        assert [status("first-key"), status("second-key")] == [401, 200]
    finally:
        server.close()
