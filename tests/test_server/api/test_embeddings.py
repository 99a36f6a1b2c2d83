"""`/v1/embeddings`: shapes and limits with the fake engine, the vectors themselves with the real one."""

import base64
import math
import struct
from typing import Any

import openai
import pytest
import torch
from transformers import LlamaModel

from tests.fakes.server_process import ServerProcess

EMBEDDINGS = "/v1/embeddings"


def embed(server: ServerProcess, value: Any, **fields: Any) -> Any:
    reply = server.api(EMBEDDINGS, {"input": value, **fields})
    assert reply.status == 200, reply.body
    return reply.json


def vector(server: ServerProcess, value: Any, **fields: Any) -> list[float]:
    found: list[float] = embed(server, value, **fields)["data"][0]["embedding"]
    return found


def refusal(server: ServerProcess, value: Any, **fields: Any) -> Any:
    reply = server.api(EMBEDDINGS, {"input": value, **fields})
    assert reply.status == 400, reply.body
    assert embed(server, "ok")["data"]
    return reply.json["error"]


def direction(*values: float) -> Any:
    length = math.hypot(*values)
    return pytest.approx([value / length for value in values])


def test_texts_and_token_ids_one_and_many(server: ServerProcess) -> None:
    answer = embed(server, "abc", user="me", model="alias")
    assert answer["object"] == "list"
    assert answer["model"] == "alias"
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    (entry,) = answer["data"]
    assert (entry["object"], entry["index"]) == ("embedding", 0)
    ids = server.api("/tokenize", {"prompt": "abc"}).json["tokens"]
    assert entry["embedding"] == direction(3, ids[-1], 3)
    assert vector(server, ids) == vector(server, "abc") == vector(server, ["abc"]) == vector(server, [ids])
    assert vector(server, "abc", pooling="mean") == direction(3, ids[-1], 4)
    many = embed(server, ["a" * number for number in range(1, 301)])["data"]
    assert [entry["index"] for entry in many] == list(range(300))
    assert [entry["embedding"] for entry in many] == [direction(number, ids[0], 3) for number in range(1, 301)]
    assert server.load()["running"] == server.load()["waiting"] == 0


def test_e1_dimensions_are_refused(server: ServerProcess) -> None:
    """vllm #15465."""
    assert refusal(server, "x", dimensions=2)["param"] == "dimensions"
    assert vector(server, "x", dimensions=None)


def test_e2_truncated_input_has_norm_1_and_base64_equals_float(server: ServerProcess) -> None:
    """vllm #22635."""
    long = "x" * 600
    error = refusal(server, long)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    answer = embed(server, long, truncate_prompt_tokens=-1)
    assert answer["usage"]["prompt_tokens"] == 512
    assert math.hypot(*answer["data"][0]["embedding"]) == pytest.approx(1)
    ids = server.api("/tokenize", {"prompt": "abcdef"}).json["tokens"]
    assert vector(server, "abcdef", truncate_prompt_tokens=2) == vector(server, ids[-2:])
    assert vector(server, "abcdef", truncate_prompt_tokens=2, truncation_side="right") == vector(server, ids[:2])
    written = embed(server, ["ab", "c"], encoding_format="base64")["data"]
    plain = embed(server, ["ab", "c"], encoding_format="float")["data"]
    for one, other in zip(written, plain, strict=True):
        assert list(struct.unpack("<3f", base64.b64decode(one["embedding"]))) == other["embedding"]


@pytest.mark.parametrize(
    ("value", "fields", "param"),
    [
        ("", {}, "input"),
        ([], {}, "input"),
        ([[]], {}, "input[0]"),
        (["a", ""], {}, "input[1]"),
        ([1, 320], {}, "input"),
        ([[1], [-1]], {}, "input[1][0]"),
        (["a"] * 2049, {}, "input"),
        (5, {}, "input"),
        ("x", {"encoding_format": "hex"}, "encoding_format"),
        ("x", {"pooling": "max"}, "pooling"),
        ("x", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("x", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        (["ok", "x" * 513], {}, "input[1]"),
    ],
)
def test_what_cannot_be_embedded_is_named(server: ServerProcess, value: Any, fields: Any, param: str) -> None:
    assert refusal(server, value, **fields)["param"] == param


def test_the_official_client(client: openai.OpenAI, server: ServerProcess) -> None:
    answer = client.embeddings.create(model="tiny", input=["ab", "abc"])
    assert answer.data[1].embedding == vector(server, "abc")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="x")
    with pytest.raises(openai.InternalServerError):
        client.embeddings.create(model="tiny", input=["a", "<|error|>"])


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_are_the_normalized_hidden_states_of_transformers(real_server: ServerProcess, pooling: str) -> None:
    text = "hidden states of a text that is somewhat longer than two blocks"
    ids = real_server.api("/tokenize", {"prompt": text}).json["tokens"]
    model = LlamaModel.from_pretrained(real_server.model, dtype=torch.float32)
    with torch.inference_mode():
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    wanted = torch.nn.functional.normalize(hidden[-1] if pooling == "last" else hidden.mean(0), dim=0).tolist()
    for _ in range(2):
        found = [entry["embedding"] for entry in embed(real_server, [text, "other", text], pooling=pooling)["data"]]
        assert found[0] == pytest.approx(wanted, abs=1e-4)
        assert found[2] == pytest.approx(wanted, abs=1e-4)
