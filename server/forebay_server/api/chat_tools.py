"""The tools of a chat request: which may be called, how the model is told, and what is enforced. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay_server.api.openai_types import AllowedToolsChoice, ChatBody, NamedTool, Tool
from forebay_server.api.service import ServedModel
from forebay_server.errors import InvalidRequestError
from forebay_server.structured.constraints import Constraint
from forebay_server.structured.json_schema import Schema
from forebay_server.structured.tool_grammar import MAX_ENFORCED_CALLS, EnforcedTool, tool_grammar
from forebay_server.text.message_parts import PartParser

_NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_descriptions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as chat templates read them."""
    return [tool.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]


@dataclass(frozen=True, slots=True)
class ChatTools:
    """What a request says about tools.

    Args:
        tools: that the model is told of; with their places in the body.
        must_call: it must call at least one.
        callable_names: what it may call.
        max_calls: None: as many as it likes.
    """

    tools: Sequence[Tool] = ()
    must_call: bool = False
    callable_names: frozenset[str] = frozenset()
    max_calls: int | None = None

    @classmethod
    def of(cls, body: ChatBody) -> "ChatTools":
        """What a body asks for.

        Raises:
            InvalidRequestError: two tools of one name, or a choice without its tool.
        """
        choice = body.tool_choice
        if not body.tools:
            if choice not in (None, "none"):
                raise InvalidRequestError("tool_choice is only for requests with tools", param="tool_choice")
            return cls()
        names = [tool.function.name for tool in body.tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequestError(
                    f"tools[{index}].function.name {name!r} is there twice", param=f"tools[{index}].function.name"
                )
        if choice == "none":
            return cls()
        max_calls = 1 if body.parallel_tool_calls is False else None
        if isinstance(choice, NamedTool):
            return cls(body.tools, True, _known([choice], names), 1)
        if isinstance(choice, AllowedToolsChoice):
            allowed = choice.allowed_tools
            return cls(body.tools, allowed.mode == "required", _known(allowed.tools, names), max_calls)
        return cls(body.tools, choice == "required", frozenset(names), max_calls)

    def grammar_text(self, constraint: Constraint | None, model: ServedModel) -> str | None:
        """What is enforced: calls, or calls or the constraint; None: nothing.

        Raises:
            InvalidRequestError: a schema cannot be enforced.
        """
        if not self.tools or (constraint is None and not self.must_call):
            return None if constraint is None else constraint.rules()
        enforced = [
            EnforcedTool(
                tool.function.name,
                _NO_ARGUMENTS if tool.function.parameters is None else tool.function.parameters,
                f"tools[{index}].function.parameters",
            )
            for index, tool in enumerate(self.tools)
            if tool.function.name in self.callable_names
        ]
        return tool_grammar(
            enforced,
            model.tool_format,
            model.text.tokenizer.special_tokens,
            max_calls=self.max_calls or MAX_ENFORCED_CALLS,
            instead=None if self.must_call else constraint,
        )

    def parser_maker(self, model: ServedModel) -> Callable[[], PartParser] | None:
        """Makes what finds calls in a text; None: there can be none."""
        if not self.tools:
            return None
        return lambda: model.tool_format.parser(self.callable_names, self.max_calls)


def _known(wanted: Sequence[NamedTool], names: Sequence[str]) -> frozenset[str]:
    """The names of the tools that a choice wants; all of them must be there."""
    for tool in wanted:
        if tool.function.name not in names:
            raise InvalidRequestError(
                f"tool_choice names {tool.function.name!r}, which is not in tools", param="tool_choice"
            )
    return frozenset(tool.function.name for tool in wanted)
