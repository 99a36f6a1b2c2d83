"""Tools to a grammar: one call or several, each with the name of a tool and arguments that its schema allows. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay_server.structured.constraints import Constraint, check_grammar
from forebay_server.structured.json_schema import Schema, json_schema_grammar
from forebay_server.text.tool_parsers.formats import ToolFormat

MAX_ENFORCED_CALLS = 16
"""A model that only ever sees the beginning of another call must end some time."""


@dataclass(frozen=True, slots=True)
class EnforcedTool:
    """A tool whose calls are enforced.

    Args:
        name: letters, digits and `_.:/-`.
        parameters: JSON Schema of the arguments, an object's.
        where: the field of the request that the schema came in.
    """

    name: str
    parameters: Schema
    where: str


def tool_grammar(
    tools: Sequence[EnforcedTool],
    form: ToolFormat,
    special_tokens: Mapping[str, int],
    *,
    max_calls: int = MAX_ENFORCED_CALLS,
    instead: Constraint | None = None,
) -> str:
    """The grammar of an answer that is nothing but calls.

    Args:
        tools: at least one.
        form: how the model writes calls.
        special_tokens: of the model, by text; marks among them are written as tokens.
        max_calls: at least 1.
        instead: what the answer may be if it calls nothing.

    Raises:
        InvalidRequestError: a schema cannot be enforced.
    """
    shape = form.shape

    def literal(text: str) -> str:
        return _literal(text, special_tokens)

    rules = [f"start: calls | {instead.inline()}" if instead else "start: calls"]
    more = f" ({literal(shape.separator)} call){{0,{max_calls - 1}}}" if max_calls > 1 else ""
    rules.append(f"calls: {literal(shape.begin)} call{more} {literal(shape.finish)}")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        head = literal(f"{shape.before_name}{tool.name}{shape.after_name}")
        schema: Any = tool.parameters if isinstance(tool.parameters, bool) else {"type": "object", **tool.parameters}
        rules.append(f"call_{index}: {head} %json {json_schema_grammar(schema, tool.where)} {literal(shape.end)}")
    text = "\n".join(rules)
    check_grammar(text, "tools")
    return text


def _literal(text: str, special_tokens: Mapping[str, int]) -> str:
    """Text in a grammar, control tokens in it as tokens; an empty one is nothing."""
    parts: list[str] = []
    while text:
        found = [(text.find(mark), mark) for mark in special_tokens if mark in text]
        start, mark = min(found, default=(len(text), ""), key=lambda place: (place[0], -len(place[1])))
        if start:
            parts.append(json.dumps(text[:start], ensure_ascii=False))
        if mark:
            parts.append(f"<[{special_tokens[mark]}]>")
        text = text[start + len(mark) :]
    return " ".join(parts)
