"""V-16: enforced calls of many tools, in every format, are calls that the parser finds and the schemas allow."""

import json
from typing import Any

import jsonschema
import pytest

from forebay_server.errors import InvalidRequestError
from forebay_server.structured.constraints import Constraint
from forebay_server.structured.tool_grammar import EnforcedTool, tool_grammar
from forebay_server.text.message_parts import CallArguments, CallStart, Content
from forebay_server.text.tool_parsers.formats import HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_NAMED, ToolFormat
from tests.test_server.structured.random_text import END_TOKEN_ID, random_text

FORMATS = pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_NAMED], ids=lambda form: form.name)


def schema_of(number: int) -> dict[str, Any]:
    count = {"type": "integer", "minimum": number, "maximum": number + 10}
    names = {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 2}
    return {
        "type": "object",
        "properties": {"count": count, "names": names},
        "required": ["count"],
        "additionalProperties": False,
    }


TOOLS = [EnforcedTool(f"tool_{number}", schema_of(number), f"tools[{number}]") for number in range(20)]


def calls_in(text: str, form: ToolFormat) -> list[tuple[str, Any]]:
    parser = form.parser(frozenset(tool.name for tool in TOOLS), None)
    names: list[str] = []
    arguments: list[str] = []
    for part in [*parser.push(text), *parser.finish()]:
        match part:
            case CallStart():
                names.append(part.name)
                arguments.append("")
            case CallArguments():
                arguments[part.index] += part.text
            case Content():
                raise AssertionError(f"{part.text!r} is not part of a call in {text!r}")
            case _:
                raise AssertionError(part)
    return list(zip(names, map(json.loads, arguments), strict=True))


@FORMATS
def test_v16_twenty_tools_can_be_required(form: ToolFormat) -> None:
    grammar = tool_grammar(TOOLS, form, {})
    called = set()
    for seed in range(20):
        text = random_text(grammar, seed, longest=3000)
        assert text is not None
        for name, arguments in calls_in(text, form):
            jsonschema.validate(arguments, schema_of(int(name.removeprefix("tool_"))))
            called.add(name)
    assert len(called) > 5


@FORMATS
def test_one_call_is_one_call(form: ToolFormat) -> None:
    grammar = tool_grammar(TOOLS, form, {}, max_calls=1)
    for seed in range(10):
        assert len(calls_in(random_text(grammar, seed) or "", form)) == 1


def test_an_answer_may_be_calls_or_what_the_constraint_says() -> None:
    instead = Constraint("choice", ["no", "never"], "guided_choice")
    grammar = tool_grammar(TOOLS, HERMES, {}, max_calls=1, instead=instead)
    texts = {random_text(grammar, seed) or "" for seed in range(60)}
    assert {"no", "never"} <= texts
    assert all(text in ("no", "never") or len(calls_in(text, HERMES)) == 1 for text in texts)


def test_marks_that_are_control_tokens_are_enforced_as_such() -> None:
    assert f"<[{END_TOKEN_ID}]>" in tool_grammar(TOOLS[:1], MISTRAL, {"[TOOL_CALLS]": END_TOKEN_ID})


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place() -> None:
    tool = EnforcedTool("f", {"properties": {"a": {"not": {}}}}, "tools[0].function.parameters")
    with pytest.raises(InvalidRequestError, match=r"tools\[0\]\.function\.parameters\.properties\.a\.not"):
        tool_grammar([tool], HERMES, {})
