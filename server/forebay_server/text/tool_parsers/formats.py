"""The formats of tool calls: how each is recognized, parsed, and enforced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from forebay_server.text.tool_parsers import hermes, llama3_json, mistral
from forebay_server.text.tool_parsers.machine import CallMachine

ToolParserName = Literal["auto", "hermes", "llama3_json", "mistral"]


@dataclass(frozen=True, slots=True)
class CallShape:
    """How one call is written around its arguments, and calls around one another.

    Args:
        begin: before the first call.
        before_name: before the name.
        after_name: between name and arguments.
        end: after the arguments.
        separator: between calls.
        finish: after the last call.
    """

    begin: str
    before_name: str
    after_name: str
    end: str
    separator: str
    finish: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format.

    Args:
        name: as `--tool-call-parser` names it.
        parser: makes a parser from the names of the tools and the most calls.
        marks: texts that may be control tokens of the model and must be seen by the parser all the same.
        shape: of calls that are enforced.
        is_short_id: ids of nine letters and digits, which Mistral's templates insist on.
    """

    name: str
    parser: Callable[[frozenset[str], int | None], CallMachine]
    marks: Sequence[str]
    shape: CallShape
    is_short_id: bool = False


HERMES = ToolFormat(
    name="hermes",
    parser=hermes.HermesParser,
    marks=(hermes.START, hermes.END),
    shape=CallShape(
        begin="",
        before_name='<tool_call>\n{"name": "',
        after_name='", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
    ),
)
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    parser=llama3_json.Llama3JsonParser,
    marks=(llama3_json.PYTHON_TAG,),
    shape=CallShape(begin="", before_name='{"name": "', after_name='", "parameters": ', end="}", separator="; "),
)
MISTRAL = ToolFormat(
    name="mistral",
    parser=mistral.MistralParser,
    marks=(mistral.MARK, mistral.ARGUMENTS_MARK, "[CALL_ID]"),
    shape=CallShape(
        begin=mistral.MARK + "[",
        before_name='{"name": "',
        after_name='", "arguments": ',
        end="}",
        separator=", ",
        finish="]",
    ),
    is_short_id=True,
)
MISTRAL_NAMED = ToolFormat(
    name="mistral",
    parser=mistral.MistralParser,
    marks=MISTRAL.marks,
    shape=CallShape(begin="", before_name=mistral.MARK, after_name=mistral.ARGUMENTS_MARK, end="", separator=""),
    is_short_id=True,
)


def tool_format(name: ToolParserName, template: str | None) -> ToolFormat:
    """The format of a model.

    Args:
        name: what `--tool-call-parser` says.
        template: the model's chat template; decides for `auto`. Hermes when it knows nothing of tools.
    """
    template = template or ""
    if name == "auto":
        if "[TOOL_CALLS]" in template:
            name = "mistral"
        elif "<tool_call>" not in template and ("<|python_tag|>" in template or "ipython" in template):
            name = "llama3_json"
        else:
            name = "hermes"
    if name == "mistral":
        return MISTRAL_NAMED if mistral.ARGUMENTS_MARK in template else MISTRAL
    return LLAMA3_JSON if name == "llama3_json" else HERMES
