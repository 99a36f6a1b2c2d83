"""The parts that an assistant's text is made of, and what takes it apart. Pure; pieces of text may be cut anywhere."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins."""

    index: int
    """Counts the calls of an answer, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, which are JSON text."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class PartParser(Protocol):
    """Takes a text apart as it grows."""

    def push(self, text: str) -> list[Part]:
        """Add text; what is certain now."""
        ...

    def finish(self) -> list[Part]:
        """The end of the text: what was held back."""
        ...


def merged(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind as one part."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        match last, part:
            case Content(), Content():
                result[-1] = Content(last.text + part.text)
            case Reasoning(), Reasoning():
                result[-1] = Reasoning(last.text + part.text)
            case CallArguments(), CallArguments() if last.index == part.index:
                result[-1] = CallArguments(part.index, last.text + part.text)
            case _:
                result.append(part)
    return result
