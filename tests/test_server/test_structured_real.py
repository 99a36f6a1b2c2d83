"""Structured output and tools with SmolLM2, as a user would ask for them."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.fakes.server_process import REAL, ServerProcess
from tests.smollm2 import smollm2_gguf

pytestmark = pytest.mark.model

PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 1, "maximum": 40_000_000},
        "kind": {"enum": ["capital", "town", "village"]},
    },
    "required": ["city", "population", "kind"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "description": "Look a place up", "parameters": PLACE}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    arguments = ["--model", str(smollm2_gguf()), "--served-model-name", "m", "--max-model-len", "1024"]
    server = ServerProcess(tmp_path_factory.mktemp("server"), arguments, program=REAL, wait_seconds=200)
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x", max_retries=0)
    server.close()


def test_v11_answers_at_temperature_1_obey_the_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Describe Lisbon as JSON."}],
        response_format=FORMAT,
        temperature=1,
        seed=1,
        n=4,
        max_tokens=150,
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), PLACE)


def test_a_required_tool_is_called_and_its_result_answered(client: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "How large is Lisbon?"}
    asked = client.chat.completions.create(
        model="m",
        messages=[question],
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=1,
        max_tokens=150,
    )
    assert asked.choices[0].finish_reason == "tool_calls"
    (call,) = asked.choices[0].message.tool_calls or []
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), PLACE)
    history: Any = [
        question,
        asked.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "545000"},
    ]
    told = client.chat.completions.create(
        model="m",
        messages=history,
        tools=[TOOL],
        max_tokens=20,
    )
    assert told.choices[0].message.content
