"""Tools and reasoning over HTTP. The fake engine says what the prompt says, the tiny model what a grammar allows."""

import json
import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.fakes.server_process import ServerProcess
from tests.fakes.tiny_model import write_tiny_model

CHAT = "/v1/chat/completions"
ECHO = (
    "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}{% endfor %}"
    "{% for tool in tools or [] %}({{ tool.function.name }}){% endfor %}"
)
"""Says everything; the tools come last, in parentheses."""


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}, **more}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


TOOLS = [tool("f"), tool("get_weather")]
TAIL = "(f)(get_weather)"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é 1"}}\n</tool_call>'


@pytest.fixture(scope="module")
def echo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("echo")
    model = write_tiny_model(folder / "model", template=ECHO)
    running = ServerProcess(
        folder, ["--model", str(model), "--served-model-name", "tiny", "--reasoning-parser", "qwen3"]
    )
    yield running
    running.close()


def ask(server: ServerProcess, text: str, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **fields}
    reply = server.api(CHAT, body)
    assert reply.status == 200, reply.body
    return reply.json


def streamed(server: ServerProcess, text: str, **fields: Any) -> dict[str, Any]:
    """The deltas put together to a choice, checking their shape."""
    body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, "stream": True, **fields}
    reply = server.api(CHAT, body)
    assert reply.status == 200, reply.body
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish_reason = None
    entries: list[Any] = []
    for line in reply.body.decode().split("\n\n")[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            assert finish_reason is None
            finish_reason = choice["finish_reason"]
            delta = choice["delta"]
            entries += (choice.get("logprobs") or {}).get("content") or []
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            assert delta.get("reasoning_content") == delta.get("reasoning")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"])
                    assert call["type"] == "function"
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return {"message": message, "finish_reason": finish_reason, "logprobs": entries}


def test_calls_are_told_whole_and_streamed(echo_server: ServerProcess) -> None:
    text = f"I look. {CALL}"
    choice = ask(echo_server, text, max_tokens=len(text.encode()))["choices"][0]
    assert choice["message"]["content"] == "I look."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "f", "arguments": '{"a": "é 1"}'}
    parts = streamed(echo_server, text, max_tokens=len(text.encode()))
    assert parts["message"]["content"] == "I look."
    assert parts["message"]["tool_calls"] == [call["function"]]
    assert parts["finish_reason"] == choice["finish_reason"] == "length"


def test_the_finish_reason_of_calls(echo_server: ServerProcess) -> None:
    choice = ask(echo_server, CALL)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == TAIL  # what the model says after its call
    assert streamed(echo_server, CALL)["finish_reason"] == "tool_calls"
    assert ask(echo_server, CALL, stop=["(f)"])["choices"][0]["message"]["content"] is None


def test_several_calls_at_once_unless_that_is_not_wanted(echo_server: ServerProcess) -> None:
    calls = ask(echo_server, CALL * 3)["choices"][0]["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == 3
    assert len(ask(echo_server, CALL * 3, parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    "text", ["<tool_call> is a mark", '<tool_call>{"name": "g", "arguments": {}}</tool_call>', "{}"]
)
def test_text_that_only_looks_like_a_call_stays_text(echo_server: ServerProcess, text: str) -> None:
    choice = ask(echo_server, text)["choices"][0]
    assert choice["message"]["content"] == text + TAIL
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert streamed(echo_server, text)["message"]["content"] == text + TAIL


def test_without_tools_or_with_none_nothing_is_a_call(echo_server: ServerProcess) -> None:
    assert ask(echo_server, CALL, tool_choice="none")["choices"][0]["message"]["content"] == CALL
    assert ask(echo_server, CALL, tools=None)["choices"][0]["message"]["content"] == CALL


def test_c2_history_reaches_the_template(echo_server: ServerProcess) -> None:
    history = [
        {"role": "user", "content": "u "},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": " result "},
        {"role": "assistant", "content": "ok", "tool_calls": []},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "2", "type": "function", "function": {"name": "f", "arguments": "{cut"}}],
        },
    ]
    reply = echo_server.api(CHAT, {"messages": history})
    assert reply.status == 200, reply.body
    assert reply.json["choices"][0]["message"]["content"] == 'u [f {"a": 1}] result ok[f "{cut"]'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": allowed("auto", "f", "g")}, "tool_choice"),
        ({"tool_choice": allowed("sometimes", "f")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [tool("f", {"not": {}})], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [tool("f", {"type": "objec"})], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"guided_grammar": 'start: "a"'}, "guided_grammar"),
    ],
)
def test_bad_tools_are_400(echo_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **fields}
    reply = echo_server.api(CHAT, body)
    assert reply.status == 400, reply.body
    assert reply.json["error"]["param"] == param


def test_l5_reasoning_is_told_apart_with_all_log_probabilities(echo_server: ServerProcess) -> None:
    text = "<think>\nfirst I think</think>\n\nthen I say"
    answer = ask(echo_server, text, tools=None, logprobs=True, top_logprobs=2)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "first I think"
    assert message["content"] == "then I say"
    usage = answer["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("<think>\nfirst I think</think>") - len(
        "<think"
    )
    assert len(answer["choices"][0]["logprobs"]["content"]) == usage["completion_tokens"]
    parts = streamed(echo_server, text, tools=None, logprobs=True)
    assert parts["message"]["reasoning_content"] == "first I think"
    assert parts["message"]["content"] == "then I say"
    assert len(parts["logprobs"]) == usage["completion_tokens"]


def test_reasoning_may_be_left_out(echo_server: ServerProcess) -> None:
    text = "<think>\nfirst I think</think>\n\nthen I say"
    fields: Any = {"tools": None, "include_reasoning": False, "logprobs": True}
    answer = ask(echo_server, text, **fields)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "then I say", "refusal": None}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    parts = streamed(echo_server, text, **fields)
    assert parts["message"]["reasoning_content"] == ""
    assert parts["message"]["content"] == "then I say"
    assert len(parts["logprobs"]) == answer["usage"]["completion_tokens"]


FRAGMENTS = [
    CALL,
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    '{"name": "f", "arguments": {',
    '{"a": {"b": [1, "}"]}}',
    '"\\u00e9\\',
    "}",
    "{",
    " \n",
    "é🙂",
    "words ",
]


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_says_what_the_whole_answer_says_whatever_it_is(echo_server: ServerProcess, seed: int) -> None:
    """Marks in any order, broken JSON, text around calls: never a 500, and the same byte for byte."""
    rng = random.Random(seed)
    text = "".join(rng.choices(FRAGMENTS, k=rng.randint(1, 7))).strip() or "x"
    fields: Any = {"max_tokens": rng.randint(20, 300), "logprobs": True, "stop": ["</th"] if seed % 4 == 0 else None}
    whole = ask(echo_server, text, **fields)["choices"][0]
    parts = streamed(echo_server, text, **fields)
    message = whole["message"]
    assert parts["message"]["content"] == (message["content"] or "")
    assert parts["message"]["reasoning_content"] == message.get("reasoning_content", "")
    assert parts["message"]["tool_calls"] == [call["function"] for call in message.get("tool_calls", [])]
    assert parts["finish_reason"] == whole["finish_reason"]
    assert parts["logprobs"] == whole["logprobs"]["content"]


def test_only_allowed_tools_are_called(echo_server: ServerProcess) -> None:
    other = CALL.replace('"f"', '"get_weather"')
    answer = ask(echo_server, CALL + other, tool_choice=allowed("auto", "get_weather"), max_tokens=300)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert answer["choices"][0]["message"]["content"] == CALL + TAIL, "the model is told of both all the same"
    body = {"input": CALL + other, "tools": [{"type": "function", "name": name} for name in ("f", "get_weather")]}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    response = echo_server.api("/v1/responses", {**body, "tool_choice": choice}).json
    assert [item["name"] for item in response["output"] if item["type"] == "function_call"] == ["f"]


def test_one_of_the_allowed_tools_is_enforced(real_server: ServerProcess) -> None:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [tool(name, nothing) for name in ("one", "two", "three")]
    fields: Any = {"tools": tools, "parallel_tool_calls": False, "temperature": 1, "max_tokens": 200}
    answer = ask(real_server, "hi", n=8, seed=2, tool_choice=allowed("required", "one", "three"), **fields)
    names = {choice["message"]["tool_calls"][0]["function"]["name"] for choice in answer["choices"]}
    assert names == {"one", "three"}


def test_calls_after_reasoning(echo_server: ServerProcess) -> None:
    message = ask(echo_server, f"<think>{CALL}</think>{CALL}")["choices"][0]["message"]
    assert message["reasoning_content"] == CALL
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]


class GetWeather(BaseModel):
    """The weather of a city."""

    days: int
    hot: bool


def weather_tool() -> Any:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    return tool("get_weather", parameters)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_required_and_named_tools_are_called(real_server: ServerProcess, choice: Any) -> None:
    tools = [
        weather_tool(),
        *([tool(f"other_{index}", weather_tool()["function"]["parameters"]) for index in range(19)]),
    ]
    fields = {"tools": tools, "tool_choice": choice, "temperature": 1, "max_tokens": 300, "parallel_tool_calls": False}
    answer = ask(real_server, "hi", n=8, seed=2, **fields)
    names = set()
    for told in answer["choices"]:
        assert told["finish_reason"] == "tool_calls"
        assert told["message"]["content"] is None
        (call,) = told["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["city"] in ("Paris", "Oslo")
        assert 1 <= arguments["days"] <= 9
        names.add(call["function"]["name"])
    assert names <= {tool["function"]["name"] for tool in tools}
    assert choice == "required" or names == {"get_weather"}
    parts = streamed(real_server, "hi", seed=2, **fields)
    first = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert parts["message"]["tool_calls"] == [first]


def test_an_answer_is_a_call_or_what_the_response_format_says(real_server: ServerProcess) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["left", "right"]}}}
    answer = ask(
        real_server, "hi", tools=[weather_tool()], response_format=form, n=8, seed=1, parallel_tool_calls=False
    )
    for choice in answer["choices"]:
        if choice["finish_reason"] == "tool_calls":
            assert choice["message"]["tool_calls"]
        else:
            assert json.loads(choice["message"]["content"]) in ("left", "right")


async def test_openai_client_calls_tools(real_server: ServerProcess) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    tools: Any = [openai.pydantic_function_tool(GetWeather)]
    bias = {str(ord(digit) - ord("!")): -9 for digit in "0123456789"}
    fields: Any = {
        "model": "tiny",
        "messages": messages,
        "tools": tools,
        "max_tokens": 300,
        "seed": 4,
        "logit_bias": bias,
    }
    address = f"http://127.0.0.1:{real_server.port}/v1"
    async with openai.AsyncOpenAI(base_url=address, api_key="x", max_retries=0) as client:
        parsed = await client.chat.completions.parse(**fields, tool_choice="required", parallel_tool_calls=False)
        (call,) = parsed.choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, GetWeather)
        async with client.chat.completions.stream(
            **fields, tool_choice="required", parallel_tool_calls=False
        ) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in kinds
        (again,) = final.choices[0].message.tool_calls or []
        assert again.function.arguments == call.function.arguments
