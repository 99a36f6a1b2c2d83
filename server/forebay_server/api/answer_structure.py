"""How the text of an answer is built: its grammar, and the parser that takes it apart. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay_server.api.chat_tools import ChatTools
from forebay_server.api.service import ServedModel
from forebay_server.structured.constraints import Constraint
from forebay_server.structured.grammar import Grammar, Thinking
from forebay_server.text import reasoning
from forebay_server.text.message_parts import PartParser
from forebay_server.text.reasoning import PlainText, ReasoningSplitter

_TAIL_TOKENS = 32
"""Of the prompt, in which the mark of an open reasoning stands."""


@dataclass(frozen=True, slots=True)
class AnswerStructure:
    """See the fields of `GenerationRequest`."""

    grammar: Grammar | None
    parser: Callable[[], PartParser] | None
    shown_token_ids: frozenset[int]


def answer_structure(
    prompt: Sequence[int], said: str, constraint: Constraint | None, tools: ChatTools, model: ServedModel
) -> AnswerStructure:
    """What a chat answer consists of: reasoning if the model is one that reasons, then text or calls.

    Args:
        prompt: token ids.
        said: the part of the answer that the prompt ends with; usually none.
        constraint: what the text must be.
        tools: that may be called.
        model: with its ways of writing.

    Raises:
        InvalidRequestError: something cannot be enforced.
    """
    text = tools.grammar_text(constraint, model)
    thinking = _thinking(prompt, said, model)
    make_answer = tools.parser_maker(model)
    marks = list(model.tool_format.marks) if make_answer is not None else []
    parser = make_answer
    if thinking is not None:
        marks += [thinking.start, thinking.end]
        is_open, make = thinking.is_open, make_answer or PlainText

        def parser() -> PartParser:
            return ReasoningSplitter(make(), is_open=is_open)

    special = model.text.tokenizer.special_tokens
    return AnswerStructure(
        grammar=None if text is None else Grammar(text=text, thinking=thinking),
        parser=parser,
        shown_token_ids=frozenset(special[mark] for mark in marks if mark in special),
    )


def _thinking(prompt: Sequence[int], said: str, model: ServedModel) -> Thinking | None:
    """Where the reasoning is when the answer begins; None: there will be none."""
    style = model.reasoning
    if style is None:
        return None
    if said:
        is_open = style.is_open_in(said)
        return Thinking(start=reasoning.START, end=reasoning.END, is_open=True) if is_open else None
    tail = model.text.tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)
    if style.is_closed_after(tail):
        return None
    return Thinking(start=reasoning.START, end=reasoning.END, is_open=style.is_open_after(tail))
