"""`/v1/responses` through the official client, whole and streamed; the fake engine answers a prompt with itself."""

import json
from typing import Any

import openai
import pytest

from tests.fakes.server_process import ServerProcess

RESPONSES = "/v1/responses"
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def respond(server: ServerProcess, **fields: Any) -> Any:
    reply = server.api(RESPONSES, {"input": "hi"} | fields)
    assert reply.status == 200, reply.body
    return reply.json


def refusal(server: ServerProcess, **fields: Any) -> Any:
    reply = server.api(RESPONSES, {"input": "hi"} | fields)
    assert reply.status == 400, reply.body
    assert respond(server)["status"] == "completed"
    return reply.json["error"]


def test_a_whole_response(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="tiny", input="é🙂", instructions="be brief", metadata={"a": "b"})
    assert answer.id.startswith("resp_")
    assert answer.object == "response"
    assert answer.status == "completed"
    assert answer.output_text == "system: be briefuser: é🙂"
    assert answer.output[0].type == "message"
    assert answer.instructions == "be brief"
    assert answer.metadata == {"a": "b"}
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens == len(answer.output_text.encode()) + 1


def test_a_conversation_as_items(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input=[{"role": "user", "content": "a"}])
    turns: list[Any] = [{"role": "user", "content": "a"}, *[item.model_dump() for item in first.output]]
    turns += [{"role": "developer", "content": [{"type": "input_text", "text": "b"}]}]
    again = client.responses.create(model="tiny", input=turns)
    assert again.output_text == "user: aassistant: user: asystem: b"


def test_a_stream_has_openai_s_events_and_the_same_response(server: ServerProcess, client: openai.OpenAI) -> None:
    whole = respond(server, input="é漢🙂")
    events = list(client.responses.create(model="tiny", input="é漢🙂", stream=True))
    kinds = [event.type for event in events]
    assert [kind for index, kind in enumerate(kinds) if kinds[index - 1 : index] != [kind]] == TEXT_EVENTS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert all(deltas)
    last = events[-1]
    assert last.type == "response.completed"
    text = last.response.output_text
    assert "".join(deltas) == text == whole["output"][0]["content"][0]["text"]
    assert last.response.usage is not None
    assert last.response.usage.model_dump(exclude_none=True) == whole["usage"]
    raw = server.api(RESPONSES, {"input": "x", "stream": True}).body.decode()
    parts = raw.strip().split("\n\n")
    assert all(part.startswith(f"event: {json.loads(part.splitlines()[1][6:])['type']}\n") for part in parts)


def test_the_client_s_stream_helper_reads_it(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="helper") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "user: helper"


def test_too_short_a_budget_is_incomplete(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="tiny", input="abc", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "use"
    *_, last = client.responses.create(model="tiny", input="abc", max_output_tokens=3, stream=True)
    assert last.type == "response.incomplete"


def test_log_probabilities(server: ServerProcess) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "max_output_tokens": 3}
    (item,) = respond(server, **fields)["output"]
    logprobs = item["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs] == list("use")
    assert all(len(entry["top_logprobs"]) == 1 for entry in logprobs)


def test_sampling_parameters_of_the_other_endpoints_are_taken(server: ServerProcess) -> None:
    found = respond(server, input="abcd", stop=["c"], cache_salt="s", ignore_eos=True, top_k=3)
    assert found["output"][0]["content"][0]["text"] == "user: ab"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"include": ["thoughts"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ],
)
def test_what_needs_memory_or_is_wrong_is_refused_by_name(
    server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    assert refusal(server, **fields)["param"] == param


def test_values_that_ask_for_nothing_are_accepted(server: ServerProcess) -> None:
    neutral = {
        "store": False,
        "background": False,
        "truncation": "disabled",
        "tool_choice": "auto",
        "tools": [],
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "service_tier": "auto",
        "stream_options": {"include_obfuscation": False},
        "prompt_cache_key": "x",
        "safety_identifier": "y",
        "metadata": None,
    }
    assert respond(server, **neutral)["status"] == "completed"


def test_stored_responses_are_not_there(client: openai.OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.NotFoundError, match="stores none"):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="stores none"):
        client.responses.cancel("resp_1")
    assert server.api(f"{RESPONSES}/resp_1", method="DELETE").status == 404


def test_a_failure_before_the_stream_has_its_own_status(server: ServerProcess) -> None:
    reply = server.api(RESPONSES, {"input": [{"role": "user", "content": "x"}], "stream": True, "model": "nobody"})
    assert reply.status == 404
    assert server.api(RESPONSES, {"input": "x" * 5000}).json["error"]["code"] == "context_length_exceeded"
