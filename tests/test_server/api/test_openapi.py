"""`/openapi.json` describes what is really sent: every answer is held against the schema of its route and status."""

import json
from typing import Any

import jsonschema
import pytest

from tests.fakes.server_process import ServerProcess

USER = {"role": "user", "content": "hi"}
TEXT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
CALLS: list[tuple[str, str, Any]] = [
    ("post", "/v1/chat/completions", {"messages": [USER]}),
    ("post", "/v1/chat/completions", {"messages": [USER], "n": 2, "logprobs": True, "top_logprobs": 2}),
    ("post", "/v1/chat/completions", {"messages": []}),
    ("post", "/v1/chat/completions", {"messages": [USER], "model": "nobody"}),
    ("post", "/v1/completions", {"prompt": "abc", "stop": ["c"]}),
    ("post", "/v1/completions", {"prompt": ["abc", "d"], "logprobs": 2, "echo": True, "max_tokens": 2}),
    ("post", "/v1/completions", {"prompt": "a<|error|>"}),
    ("post", "/v1/completions", {"prompt": ["a"] * 300}),
    ("post", "/v1/embeddings", {"input": ["a", "b"]}),
    ("post", "/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("post", "/v1/embeddings", {"input": "a", "dimensions": 3}),
    ("post", "/v1/responses", {"input": "a"}),
    ("post", "/v1/responses", {"input": "a", "max_output_tokens": 1}),
    ("post", "/v1/responses", {"input": "a", "store": True}),
    ("post", "/tokenize", {"prompt": "a"}),
    ("post", "/tokenize", {"messages": [USER], "return_token_strs": True}),
    ("post", "/tokenize", {}),
    ("post", "/detokenize", {"tokens": [1, 2]}),
    ("post", "/detokenize", {"tokens": "x"}),
    ("get", "/tokenizer_info", None),
    ("get", "/v1/models", None),
    ("get", "/v1/models/tiny", None),
    ("get", "/v1/models/nobody", None),
    ("get", "/version", None),
    ("get", "/load", None),
    ("get", "/health", None),
]


@pytest.fixture(scope="module")
def page(server: ServerProcess) -> Any:
    return server.api("/openapi.json").json


@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=lambda value: json.dumps(value)[:60])
def test_answers_are_as_described(server: ServerProcess, page: Any, method: str, path: str, body: Any) -> None:
    reply = server.api(path, body, method=method.upper())
    route = path if path in page["paths"] else "/v1/models/{name}"
    described = page["paths"][route][method]["responses"][str(reply.status)]["content"]["application/json"]["schema"]
    # where the definitions lie is part of the page, so the schema is read as a part of it
    jsonschema.Draft202012Validator({**page, **described}).validate(reply.json)
    assert described, "an empty schema describes nothing"


def test_a_wrong_answer_would_be_seen(page: Any) -> None:
    described = page["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator({**page, **described}).validate({"id": 5})


def test_every_route_says_what_it_takes_and_gives(page: Any) -> None:
    for path, methods in page["paths"].items():
        for method, route in methods.items():
            assert route["summary"], path
            assert "200" in route["responses"], path
            if method == "post":
                assert route["requestBody"]["content"]["application/json"]["schema"], path
                assert {"400", "401", "429", "500", "503"} <= set(route["responses"]), path
                assert "422" not in route["responses"], "bad bodies are 400 here"
    streaming = page["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(streaming) == {"application/json", "text/event-stream"}
