"""Structured output of a real server whose model has random weights: nothing but the grammar makes it write JSON."""

import concurrent.futures
import json
import re
import time
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.fakes.server_process import ServerProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]+$", "minLength": 3, "maxLength": 6},
        "age": {"type": "integer", "minimum": 18, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def chat(server: ServerProcess, **fields: Any) -> Any:
    reply = server.api(CHAT, {"messages": MESSAGES, "max_tokens": 300, **fields})
    assert reply.status == 200, reply.body
    return reply.json


def contents(answer: Any) -> list[str]:
    assert all(choice["finish_reason"] == "stop" for choice in answer["choices"]), answer
    return [choice["message"]["content"] for choice in answer["choices"]]


SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "nested": {
        "type": "object",
        "properties": {"point": {"type": "array", "prefixItems": [{"type": "integer", "maximum": 9}], "items": False}},
        "required": ["point"],
        "additionalProperties": False,
    },
    "alternatives": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}, {"const": None}]},
    "date": {"type": "string", "format": "date"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_v11_fifty_answers_at_temperature_1_obey_the_schema(real_server: ServerProcess, name: str) -> None:
    answer = chat(real_server, response_format=json_schema(SCHEMAS[name]), n=50, temperature=1, seed=3)
    texts = contents(answer)
    assert len(texts) == 50
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker())
    assert len(set(texts)) > 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": json_schema({"type": "objec"})}, "response_format.json_schema.schema"),
        ({"response_format": json_schema({"uniqueItems": True})}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_v9_bad_schemas_and_expressions_are_400(
    real_server: ServerProcess, path: str, fields: dict[str, Any], param: str
) -> None:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    reply = real_server.api(path, {**prompt, **fields})
    assert reply.status == 400, reply.body
    assert reply.json["error"]["param"] == param
    assert real_server.api(COMPLETIONS, {"prompt": "hi", "max_tokens": 1}).status == 200


def test_fields_of_other_servers_clients(real_server: ServerProcess) -> None:
    for fields, pattern in (
        ({"guided_json": json.dumps({"type": "integer", "minimum": 3, "maximum": 5})}, "[345]"),
        ({"guided_regex": "[ab]{3}-[0-9]"}, "[ab]{3}-[0-9]"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
        ({"structured_outputs": {"json": {"const": 7}}}, "7"),
        ({"structured_outputs": {"regex": "k{2}"}}, "kk"),
        ({"structured_outputs": {"choice": ["only"]}}, "only"),
        ({"structured_outputs": {"grammar": 'start: "q"'}}, "q"),
    ):
        reply = real_server.api(COMPLETIONS, {"prompt": "hi", "max_tokens": 50, **fields})
        assert reply.status == 200, reply.body
        assert re.fullmatch(pattern, reply.json["choices"][0]["text"]), fields
        assert reply.json["choices"][0]["finish_reason"] == "stop"


def test_seeds_streams_and_company_do_not_change_a_constrained_answer(real_server: ServerProcess) -> None:
    fields = {"response_format": json_schema(PERSON), "temperature": 1, "seed": 11}
    alone = contents(chat(real_server, **fields))[0]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        others = [
            threads.submit(chat, real_server, temperature=1, **more)
            for more in ({}, {"guided_choice": ["a", "b"]}, {"response_format": json_schema(SCHEMAS["date"])}) * 2
        ]
        again = threads.submit(chat, real_server, **fields)
        assert contents(again.result())[0] == alone
        for other in others:
            other.result()
    reply = real_server.api(CHAT, {"messages": MESSAGES, "max_tokens": 300, "stream": True, **fields})
    lines = [line.removeprefix("data: ") for line in reply.body.decode().split("\n\n") if line]
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == alone
    assert choices[-1]["finish_reason"] == "stop"


def test_constraints_go_with_other_parameters(real_server: ServerProcess) -> None:
    yes_no = {"guided_choice": ["yes", "no"]}
    answer = chat(real_server, **yes_no, logprobs=True, top_logprobs=5, min_tokens=20, ignore_eos=True)
    assert contents(answer)[0] in ("yes", "no")  # the grammar is over, whatever else was asked
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert all(-9999 <= entry["logprob"] <= 0 for entry in entries)
    stopped = chat(real_server, guided_regex="a{3}b{3}", stop=["ab"])
    assert (stopped["choices"][0]["message"]["content"], stopped["choices"][0]["stop_reason"]) == ("aa", "ab")
    longer = chat(real_server, guided_regex="[ab]+", min_tokens=9, max_tokens=200)
    assert len(longer["choices"][0]["message"]["content"]) >= 9
    cut = chat(real_server, response_format=json_schema(PERSON), max_tokens=5)
    assert cut["choices"][0]["finish_reason"] == "length"


def test_nothing_left_to_pick_fails_the_request_alone(real_server: ServerProcess) -> None:
    reply = real_server.api(CHAT, {"messages": MESSAGES, "guided_choice": ["yes"], "allowed_token_ids": [5]})
    assert reply.status == 400
    assert "no token is left to pick" in reply.json["error"]["message"]
    assert contents(chat(real_server, guided_choice=["yes"])) == ["yes"]


def test_v16_others_are_not_stalled_while_a_large_grammar_is_compiled(real_server: ServerProcess) -> None:
    words = [f"word number {number} of very many" for number in range(9000)]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        large = threads.submit(chat, real_server, guided_choice=words)
        running_until = time.monotonic() + 0.5
        while time.monotonic() < running_until and not large.done():
            assert real_server.api(COMPLETIONS, {"prompt": "hi", "max_tokens": 1}).status == 200
        assert contents(large.result())[0] in words


class Address(BaseModel):
    model_config = ConfigDict(extra="forbid")
    street: str = Field(pattern="^[a-z]{2,5}$")
    number: int = Field(ge=1, le=99)


class Order(BaseModel):
    """V-16: what pydantic makes of conint and conlist."""

    customer: Address
    quantities: list[int] = Field(min_length=1, max_length=3)
    note: str | None = Field(max_length=4)


def test_openai_client_parses_pydantic_models(real_server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{real_server.port}/v1", api_key="x", max_retries=0) as client:
        parsed = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": "an order"}],
            response_format=Order,
            max_tokens=400,
            seed=5,
            extra_body={"logit_bias": {str(ord(digit) - ord("!")): -8 for digit in "0123456789"}},
        )
        order = parsed.choices[0].message.parsed
        assert order is not None
        assert 1 <= order.customer.number <= 99
        with client.chat.completions.stream(
            model="tiny",
            messages=[{"role": "user", "content": "an address"}],
            response_format=Address,
            max_tokens=200,
            seed=6,
        ) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0].message.parsed
        assert isinstance(final, Address)


def many_properties(prefix: str) -> dict[str, Any]:
    """A schema whose check takes a noticeable part of a second."""
    return {"type": "object", "properties": {f"{prefix}{number}": {"type": "string"} for number in range(1500)}}


def test_v16_nobody_waits_for_the_check_of_others_schemas(server: ServerProcess) -> None:
    prefixes = "abcdefghijklmnop"
    with concurrent.futures.ThreadPoolExecutor(len(prefixes)) as threads:
        slow = [
            threads.submit(
                server.api, CHAT, {"messages": MESSAGES, "response_format": json_schema(many_properties(prefix))}
            )
            for prefix in prefixes
        ]
        time.sleep(0.3)
        for path, body in ((COMPLETIONS, {"prompt": "hi"}), ("/tokenize", {"prompt": "hi"})):
            assert server.api(path, body).status == 200
        num_done = sum(answer.done() for answer in slow)
        assert num_done < len(slow) / 2  # nearly all would be, had these two stood behind them
        assert all(answer.result().status == 200 for answer in slow)
