"""Split a text into reasoning and answer at `<think>` and `</think>`. Pure."""

from dataclasses import dataclass
from typing import Literal

from forebay_server.text.message_parts import Content, Part, PartParser, Reasoning, merged

ReasoningParserName = Literal["none", "think", "deepseek_r1", "qwen3"]
START, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """How a model reasons.

    Args:
        starts_open: the answer begins inside the reasoning even when nothing says so.
    """

    starts_open: bool = False

    def is_open_after(self, prompt: str) -> bool:
        """Whether an answer begins inside the reasoning, by the last mark of its prompt."""
        start, end = prompt.rfind(START), prompt.rfind(END)
        if start < 0 and end < 0:
            return self.starts_open
        # marks of earlier turns are closed and followed by text
        return start > end and not prompt[start + len(START) :].strip()

    def is_open_in(self, answer: str) -> bool:
        """Whether the beginning of an answer ends inside the reasoning."""
        start, end = answer.rfind(START), answer.rfind(END)
        return self.starts_open if start < 0 and end < 0 else start > end

    def is_closed_after(self, prompt: str) -> bool:
        """Whether the prompt ends with finished (usually empty) reasoning, so that the answer has none."""
        return prompt.rstrip().endswith(END)


def reasoning_style(name: ReasoningParserName) -> ReasoningStyle | None:
    """The style that `--reasoning-parser` names."""
    return None if name == "none" else ReasoningStyle(starts_open=name == "deepseek_r1")


class ReasoningSplitter:
    """Reasoning first, if there is any, then the answer, which another parser takes apart.

    White space around the reasoning is dropped.

    Args:
        answer: of the rest.
        is_open: the text begins inside the reasoning; otherwise it may begin with the start mark.
    """

    def __init__(self, answer: PartParser, *, is_open: bool) -> None:
        self._answer = answer
        self._is_open = is_open
        self._is_decided = is_open
        self._is_at_start = True
        """Of the reasoning or of the answer after it: white space and, once, the start mark are dropped."""
        self._held = ""

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token is part of the reasoning, as far as is known."""
        return self._is_open

    @property
    def is_undecided(self) -> bool:
        """Whether reasoning may still begin."""
        return not self._is_decided

    def push(self, text: str) -> list[Part]:
        """See `PartParser.push`."""
        parts: list[Part] = []
        if not self._is_decided:
            text = self._decide(text, parts)
        if self._is_open:
            text = self._think(text, parts)
        if self._is_decided and not self._is_open and text:
            if self._is_at_start:
                text = text.lstrip()
                self._is_at_start = not text
            parts += self._answer.push(text)
        return merged(parts)

    def finish(self) -> list[Part]:
        """See `PartParser.finish`."""
        held, self._held = self._held, ""
        parts: list[Part] = []
        if self._is_open:
            if held.strip():
                parts.append(Reasoning(held.rstrip()))
        elif held:
            parts += self._answer.push(held)
        return merged([*parts, *self._answer.finish()])

    def _decide(self, text: str, parts: list[Part]) -> str:
        """Look for the start mark at the start; returns what comes after the decision."""
        text = self._held + text
        begun = text.lstrip()
        self._held = ""
        if begun.startswith(START):
            self._is_decided = self._is_open = True
            return begun.removeprefix(START)
        if START.startswith(begun):
            self._held = text
            return ""
        self._is_decided, self._is_at_start = True, False
        return text

    def _think(self, text: str, parts: list[Part]) -> str:
        """Reasoning; returns what comes after the end mark."""
        text = self._held + text
        self._held = ""
        if self._is_at_start:
            text = text.lstrip()
            if text and START.startswith(text) and text != START:
                self._held = text
                return ""
            text = text.removeprefix(START).lstrip()
            self._is_at_start = not text
        thought, mark, rest = text.partition(END)
        if mark:
            self._is_open, self._is_at_start = False, True
            if thought.strip():
                parts.append(Reasoning(thought.rstrip()))
            return rest
        num_held = _num_held(text)
        self._held = text[len(text) - num_held :]
        if num_held < len(text):
            parts.append(Reasoning(text[: len(text) - num_held]))
        return ""


def _num_held(text: str) -> int:
    """Characters at the end that may be dropped: white space, and a beginning of the end mark after it."""
    mark = next((length for length in range(min(len(text), len(END) - 1), 0, -1) if text.endswith(END[:length])), 0)
    return len(text) - len(text[: len(text) - mark].rstrip())


class PlainText:
    """An answer that is nothing but text."""

    def push(self, text: str) -> list[Part]:
        """See `PartParser.push`."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """See `PartParser.finish`."""
        return []
