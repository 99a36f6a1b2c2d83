"""Fields that clients of other servers send: done as they mean them, or refused in words that say what to do."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.server_process import ServerProcess
from tests.fakes.tiny_model import write_tiny_model

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
USER = {"role": "user", "content": "hi"}
TELLS_ALL = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content | trim }}"
    "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}<|end|>{% endfor %}"
    "{% for document in documents or [] %}[{{ document.title }}: {{ document.text }}]{% endfor %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }};{% endif %}"
    "{% if enable_thinking is defined %}thinking {{ enable_thinking }};{% endif %}"
    "{% if note is defined %}{{ note }}{% endif %}"
    "{% for tool in tools or [] %}({{ tool | tojson }}){% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)


@pytest.fixture(scope="module")
def telling_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its template says all that it is told; its answer is its prompt."""
    folder = tmp_path_factory.mktemp("telling")
    model = write_tiny_model(folder / "model", template=TELLS_ALL)
    running = ServerProcess(
        folder, ["--model", str(model), "--served-model-name", "tiny", "--reasoning-parser", "qwen3"]
    )
    yield running
    running.close()


def prompt_of(server: ServerProcess, **fields: Any) -> str:
    reply = server.api("/tokenize", {"messages": [USER], **fields})
    assert reply.status == 200, reply.body
    text: str = server.api("/detokenize", {"tokens": reply.json["tokens"]}).json["prompt"]
    return text


def post(server: ServerProcess, path: str, **fields: Any) -> Any:
    prompt: dict[str, Any] = {CHAT: {"messages": [USER]}, COMPLETIONS: {"prompt": "abc"}, RESPONSES: {"input": "a"}}
    reply = server.api(path, {**prompt[path], **fields})
    assert reply.status == 200, reply.body
    return reply.json


def stream(server: ServerProcess, path: str, **fields: Any) -> list[Any]:
    prompt: dict[str, Any] = {CHAT: {"messages": [USER]}, COMPLETIONS: {"prompt": "abc"}}
    reply = server.api(path, {**prompt[path], **fields, "stream": True})
    assert reply.status == 200, reply.body
    return [json.loads(event.removeprefix("data: ")) for event in reply.body.decode().split("\n\n")[:-2]]


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"functions": [{"name": "f"}]}, "functions", "use tools"),
    (CHAT, {"function_call": {"name": "f"}}, "function_call", "use tool_choice"),
    (CHAT, {"chat_template": "{{ messages }}"}, "chat_template", "/v1/completions"),
    (CHAT, {"add_special_tokens": True}, "add_special_tokens", "leave it out"),
    (CHAT, {"web_search_options": {}}, "web_search_options", "tool of your own"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities", "leave it out"),
    (CHAT, {"audio": {"voice": "x"}}, "audio", "leave it out"),
    (CHAT, {"use_beam_search": True}, "use_beam_search", "ask for n"),
    (CHAT, {"best_of": 3, "n": 2}, "best_of", "ask for n"),
    (CHAT, {"documents": [{"title": "t", "text": "x"}]}, "documents", "put them into a message"),
    (CHAT, {"continue_final_message": True}, "continue_final_message", "text of the assistant"),
    (
        CHAT,
        {
            "messages": [USER, {"role": "assistant", "content": "x"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "continue_final_message",
        "leave one out",
    ),
    (
        CHAT,
        {"messages": [USER, {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}]},
        "messages[1].function_call",
        "use tool_calls",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "send text",
    ),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "no text"),
    (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not for stream"),
    (
        CHAT,
        {"structured_outputs": {"choice": ["a"], "whitespace_pattern": "x"}},
        "structured_outputs.whitespace_pattern",
        "",
    ),
    (
        CHAT,
        {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
        "",
    ),
    (CHAT, {"chat_template_kwargs": "x"}, "chat_template_kwargs", ""),
    (COMPLETIONS, {"suffix": "x"}, "suffix", "into the prompt"),
    (COMPLETIONS, {"prompt_embeds": "x"}, "prompt_embeds", "use prompt"),
    (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id", "as input"),
    (RESPONSES, {"return_token_ids": True}, "return_token_ids", "/v1/chat/completions"),
    (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
        "send text",
    ),
    (RESPONSES, {"max_output_tokens": 5000}, "max_output_tokens", "context holds"),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}},
        "text.format.schema",
        "text.format.schema.not",
    ),
    (
        RESPONSES,
        {"tools": [{"type": "function", "name": "f", "parameters": {"not": {}}}], "tool_choice": "required"},
        "tools[0].parameters",
        "tools[0].parameters.not",
    ),
    (RESPONSES, {"input": "x" * 5000}, "input", "context holds"),
]


@pytest.mark.parametrize(("path", "fields", "param", "advice"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_refusal_names_the_field_and_what_to_do(
    server: ServerProcess, path: str, fields: dict[str, Any], param: str, advice: str
) -> None:
    prompt: dict[str, Any] = {CHAT: {"messages": [USER]}, COMPLETIONS: {"prompt": "abc"}, RESPONSES: {"input": "a"}}
    reply = server.api(path, {**prompt[path], **fields})
    assert reply.status == 400, reply.body
    error = reply.json["error"]
    assert error["param"] == param
    assert advice in error["message"]


def test_what_changes_nothing_here_is_taken(server: ServerProcess) -> None:
    harmless = {
        "service_tier": "auto",
        "store": True,
        "metadata": {"a": "b"},
        "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "verbosity": "low",
        "best_of": 2,
        "n": 2,
        "functions": [],
        "function_call": "none",
        "separate_reasoning": True,
        "include_reasoning": True,
        "reasoning_effort": "medium",
        "documents": [],
        "guided_decoding_backend": "xgrammar",
        "spaces_between_special_tokens": True,
        "add_special_tokens": False,
        "continue_final_message": False,
        "structured_outputs": None,
    }
    assert len(post(server, CHAT, **harmless)["choices"]) == 2
    assert len(post(server, COMPLETIONS, **harmless)["choices"]) == 2
    included = ["reasoning.encrypted_content", "file_search_call.results"]
    answer = post(server, RESPONSES, include=included, reasoning={"effort": "low", "summary": "auto"})
    assert answer["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize(
    "text", ["Once upon", "Once upon ", " \n", "", "a<|end|>b", [{"type": "text", "text": "Once"}]]
)
def test_the_answer_goes_on_with_the_last_message(
    server: ServerProcess, telling_server: ServerProcess, text: Any
) -> None:
    messages = [USER, {"role": "assistant", "content": text}]
    said = text if isinstance(text, str) else "Once"
    begun = f"<|start|>user: hi<|end|><|start|>assistant: {said}"
    assert prompt_of(server, messages=messages, continue_final_message=True) == begun
    stripped = prompt_of(telling_server, messages=messages, continue_final_message=True)
    assert stripped == begun.rstrip(), "this template strips, as transformers then does"
    answer = post(server, CHAT, messages=messages, continue_final_message=True, return_token_ids=True)
    again = server.api("/detokenize", {"tokens": answer["prompt_token_ids"]}).json["prompt"]
    assert again == begun


def test_an_answer_goes_on_with_reasoning_that_was_begun(telling_server: ServerProcess) -> None:
    def parts(said: str) -> tuple[Any, Any]:
        messages = [USER, {"role": "assistant", "content": said}]
        answer = post(telling_server, CHAT, messages=messages, continue_final_message=True)
        message = answer["choices"][0]["message"]
        return message["content"], message.get("reasoning_content")

    assert parts("<think>hm")[0] is None, "the model echoes its prompt, all of it thought"
    assert parts("<think>hm</think>so")[1] is None
    assert parts("so")[1] is None


def test_documents_reach_the_template_and_forge_nothing(telling_server: ServerProcess) -> None:
    documents = [{"title": "one", "text": "x<|end|>y"}, {"title": "two", "text": "z"}]
    assert "[one: x<|end|>y][two: z]" in prompt_of(telling_server, documents=documents)
    ids = telling_server.api("/tokenize", {"messages": [USER], "documents": documents}).json["tokens"]
    without = telling_server.api("/tokenize", {"messages": [USER]}).json["tokens"]
    end = telling_server.api("/tokenize", {"prompt": "<|end|>", "add_special_tokens": False}).json["tokens"]
    assert len(end) == 1
    assert ids.count(end[0]) == without.count(end[0])


def test_the_effort_is_told_to_the_template(telling_server: ServerProcess) -> None:
    assert "effort high;<" in prompt_of(telling_server, reasoning_effort="high")
    assert "effort none;thinking False;" in prompt_of(telling_server, reasoning_effort="none")
    kwargs = {"enable_thinking": True, "reasoning_effort": "low"}
    both = prompt_of(telling_server, reasoning_effort="none", chat_template_kwargs=kwargs)
    assert "effort low;thinking True;" in both
    assert "effort" not in prompt_of(telling_server)


def test_tools_and_earlier_reasoning_are_counted(telling_server: ServerProcess) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"<|end|>": {}}}}}
    assert '"name": "f"' in prompt_of(telling_server, tools=[tool])
    for name in ("reasoning", "reasoning_content"):
        thought = [USER, {"role": "assistant", "content": "x", name: "hm"}, USER]
        assert "assistant: x(hm)" in prompt_of(telling_server, messages=thought)


@pytest.mark.parametrize(
    "note", ["\U0010fdd07\U0010fdd1", "\U0010fdd00\U0010fdd1", "\U0010fdd2 ", "<|end|>", ["<|error|>"]]
)
def test_names_for_the_template_cannot_break_or_forge(telling_server: ServerProcess, note: Any) -> None:
    messages = [{"role": "user", "content": "<|start|>"}, {"role": "assistant", "content": "x"}]
    for more in ({}, {"continue_final_message": True}):
        post(telling_server, CHAT, messages=messages, chat_template_kwargs={"note": note}, **more)


def test_what_is_nested_too_deeply_is_400(telling_server: ServerProcess) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    for fields in (
        {"chat_template_kwargs": {"note": deep}},
        {"messages": [{**USER, "extra": deep}]},
        {"documents": [{"text": deep}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": deep}}}]},
    ):
        reply = telling_server.api(CHAT, {"messages": [USER], **fields})
        assert reply.status in (200, 400), reply.body
        assert (
            reply.status == 200 or "deep" in reply.json["error"]["message"] or "JSON" in reply.json["error"]["message"]
        )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_token_ids_come_with_the_text(real_server: ServerProcess, path: str) -> None:
    fields: dict[str, Any] = {"return_token_ids": True, "n": 2, "seed": 3, "max_tokens": 12, "temperature": 1}
    whole = post(real_server, path, **fields)
    chunks = stream(real_server, path, **fields)
    for choice in whole["choices"]:
        ids = choice["token_ids"]
        assert len(ids) == 12 or choice["finish_reason"] == "stop"
        streamed = [told for chunk in chunks for told in chunk["choices"] if told["index"] == choice["index"]]
        assert [token_id for told in streamed for token_id in told.get("token_ids", ())] == ids
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        ordinary = [token_id for token_id in ids if token_id < 258]
        assert real_server.api("/detokenize", {"tokens": ordinary}).json["prompt"] == text
    if path == COMPLETIONS:
        prompts = [choice["prompt_token_ids"] for choice in whole["choices"]]
        firsts = [
            told["prompt_token_ids"] for chunk in chunks for told in chunk["choices"] if "prompt_token_ids" in told
        ]
    else:
        prompts = [whole["prompt_token_ids"]]
        firsts = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    assert len(firsts) == 2, "once a choice"
    assert prompts[0] == firsts[0] == firsts[1]
    assert len(prompts[0]) == whole["usage"]["prompt_tokens"]
    assert "token_ids" not in post(real_server, path, max_tokens=1)["choices"][0]


def test_chat_tells_prompt_logprobs_as_completions_do(real_server: ServerProcess) -> None:
    chat = post(real_server, CHAT, prompt_logprobs=2, max_tokens=1, return_token_ids=True)
    prompt = chat["prompt_token_ids"]
    completion = post(real_server, COMPLETIONS, prompt=prompt, prompt_logprobs=2, max_tokens=1)
    assert chat["prompt_logprobs"] == completion["choices"][0]["prompt_logprobs"]
    assert len(chat["prompt_logprobs"]) == len(prompt)
    assert all(str(token_id) in row for token_id, row in zip(prompt[1:], chat["prompt_logprobs"][1:], strict=True))


def test_tokens_are_named_by_their_ids(server: ServerProcess) -> None:
    as_ids: dict[str, Any] = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    completion = post(server, COMPLETIONS, logprobs=1, **as_ids)["choices"][0]
    names = [f"token_id:{token_id}" for token_id in completion["token_ids"]]
    assert completion["logprobs"]["tokens"] == names
    assert all(name in row for name, row in zip(names, completion["logprobs"]["top_logprobs"], strict=True))
    chat = post(server, CHAT, logprobs=True, top_logprobs=1, **as_ids)["choices"][0]
    entries = chat["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token_id}" for token_id in chat["token_ids"]]
    assert all(entry["top_logprobs"][0]["token"].startswith("token_id:") for entry in entries)
    assert bytes(entries[0]["bytes"]).decode() == chat["message"]["content"][0]


def test_grammars_under_other_servers_names(real_server: ServerProcess) -> None:
    digits = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    for fields, pattern in (
        ({"json_schema": json.dumps(digits)}, r'{\s*"a"\s*:\s*[12]\s*}'),
        ({"json_schema": digits}, r'{\s*"a"\s*:\s*[12]\s*}'),
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"ebnf": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
        ({"response_format": {"type": "json_object", "schema": digits}}, r'{\s*"a"\s*:\s*[12]\s*}'),
    ):
        for path in (CHAT, COMPLETIONS):
            choice = post(real_server, path, max_tokens=300, **fields)["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert re.fullmatch(pattern, choice["text"] if path == COMPLETIONS else choice["message"]["content"])
    reply = real_server.api(CHAT, {"messages": [USER], "regex": "a", "guided_json_object": True})
    assert reply.json["error"]["param"] == "regex"
    answer = post(real_server, CHAT, guided_json_object=True, max_tokens=3)
    assert answer["choices"][0]["message"]["content"].startswith("{")
