"""Tools in plain words, for models whose chat template knows nothing of them: the Hermes way of writing. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forebay_server.text.tool_parsers.hermes import END, START

_INSTRUCTIONS = f"""\
You can call these functions, each described by a JSON object:
{{tools}}
To call one, write {START}{{{{"name": "...", "arguments": {{{{...}}}}}}}}{END} and nothing else. Its result comes in \
<tool_response></tool_response>. If no function helps, answer in words."""


def with_tools_in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation without any field for tools.

    Args:
        messages: for a template; with `tool_calls` and the role `tool`.
        tools: as OpenAI describes them; none: only the messages are changed.
    """
    told: list[dict[str, Any]] = []
    for message in messages:
        plain = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if told and told[-1].get("is_result"):
                told[-1]["content"] += "\n" + text
            else:
                told.append({"role": "user", "content": text, "is_result": True})
            continue
        calls = [_call_text(call["function"]) for call in message.get("tool_calls") or ()]
        plain["content"] = "\n".join([*([message["content"]] if message["content"] else []), *calls])
        told.append(plain)
    for message in told:
        message.pop("is_result", None)
    if tools:
        text = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools))
        if told and told[0]["role"] == "system":
            told[0]["content"] += "\n\n" + text
        else:
            told.insert(0, {"role": "system", "content": text})
    return told


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{START}\n{json.dumps(call, ensure_ascii=False)}\n{END}"
