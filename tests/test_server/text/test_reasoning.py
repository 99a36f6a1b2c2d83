"""Reasoning told apart from the answer, however the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.text.message_parts import CallArguments, CallStart, Content, Part, Reasoning, merged
from forebay_server.text.reasoning import PlainText, ReasoningSplitter, ReasoningStyle, reasoning_style
from forebay_server.text.tool_parsers.formats import HERMES


def parts_of(*pieces: str, is_open: bool = False) -> list[Part]:
    splitter = ReasoningSplitter(PlainText(), is_open=is_open)
    parts = [part for piece in pieces for part in splitter.push(piece)]
    return merged([*parts, *splitter.finish()])


CASES: list[tuple[bool, str, list[Part]]] = [
    (False, "<think>\nwhy not\n</think>\n\nanswer ", [Reasoning("why not"), Content("answer ")]),
    (False, "  <think> x < y </thin </think>z", [Reasoning("x < y </thin"), Content("z")]),
    (False, "<think>never ends", [Reasoning("never ends")]),
    (False, "<think></think>hi", [Content("hi")]),
    (False, "<think>\n\n</think>\n\nhi", [Content("hi")]),
    (False, "answer <think>x</think>", [Content("answer <think>x</think>")]),
    (False, "no</think>marks", [Content("no</think>marks")]),
    (False, "\n\nhello", [Content("\n\nhello")]),
    (False, "<thi", [Content("<thi")]),
    (False, "", []),
    (True, "why\n</think>answer", [Reasoning("why"), Content("answer")]),
    (True, "<think>why</think>answer", [Reasoning("why"), Content("answer")]),
    (True, "why </thi", [Reasoning("why </thi")]),
    (True, "why", [Reasoning("why")]),
]


@pytest.mark.parametrize(("is_open", "text", "parts"), CASES)
def test_reasoning_and_answer(is_open: bool, text: str, parts: list[Part]) -> None:
    assert parts_of(text, is_open=is_open) == parts
    assert parts_of(*text, is_open=is_open) == parts


FRAGMENTS = ["<think>", "</think>", "<th", "ink>", "</", " ", "\n", "a", "<", ">"]


@given(
    st.booleans(),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_any_cutting_of_the_text_gives_the_same(is_open: bool, text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    assert parts_of(*pieces, is_open=is_open) == parts_of(text, is_open=is_open)


def test_calls_after_the_reasoning_are_found_and_those_in_it_are_not() -> None:
    splitter = ReasoningSplitter(HERMES.parser(frozenset({"f"}), None), is_open=False)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parts = merged([*splitter.push(f"<think>{call}</think>{call}"), *splitter.finish()])
    assert parts == [Reasoning(call), CallStart(0, "f"), CallArguments(0, "{}")]


@pytest.mark.parametrize(
    ("prompt", "is_open", "is_closed"),
    [
        ("<|im_start|>assistant\n", False, False),
        ("<|im_start|>assistant\n<think>\n", True, False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False, True),
        ("<think>a</think>b<|im_start|>assistant\n", False, False),
        ("what is <think> for?<|im_start|>assistant\n", False, False),
    ],
)
def test_the_prompt_tells_whether_reasoning_has_begun(prompt: str, is_open: bool, is_closed: bool) -> None:
    style = ReasoningStyle()
    assert (style.is_open_after(prompt), style.is_closed_after(prompt)) == (is_open, is_closed)


def test_names_of_other_servers_are_understood() -> None:
    assert reasoning_style("none") is None
    assert reasoning_style("qwen3") == reasoning_style("think") == ReasoningStyle()
    deepseek = reasoning_style("deepseek_r1")
    assert deepseek is not None
    assert deepseek.is_open_after("no mark")
