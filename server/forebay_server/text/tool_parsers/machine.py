"""CallMachine: what the parsers of all formats share: characters one by one, content around calls, numbered calls."""

from abc import ABC, abstractmethod

from forebay_server.text.message_parts import CallArguments, CallStart, Content, Part, merged
from forebay_server.text.tool_parsers.call_object import CallObject


class CallMachine(ABC):
    """Finds tool calls in a text. Text that only looks like a call stays text.

    White space next to calls is dropped.

    Args:
        names: of the tools.
        max_calls: further calls are dropped.
    """

    def __init__(self, names: frozenset[str], max_calls: int | None = None) -> None:
        self._names = names
        self._max_calls = max_calls
        self._num_calls = 0
        self._parts: list[Part] = []
        self._held_space = ""

    def push(self, text: str) -> list[Part]:
        """See `PartParser.push`."""
        for character in text:
            self._push(character)
        return self._take()

    def finish(self) -> list[Part]:
        """See `PartParser.finish`."""
        self._finish()
        if not self._num_calls:
            self._parts.append(Content(self._held_space))
        return self._take()

    @abstractmethod
    def _push(self, character: str) -> None:
        """Add one character."""

    @abstractmethod
    def _finish(self) -> None:
        """Say what was held back."""

    def _push_again(self, text: str) -> None:
        """Look once more at text that was taken for something else."""
        for character in text:
            self._push(character)

    def _say(self, text: str) -> None:
        """Content; white space waits until more comes, since a call may."""
        text = self._held_space + text
        said = text.rstrip()
        self._held_space = text[len(said) :]
        self._parts.append(Content(said))

    def _start_call(self, name: str) -> None:
        self._held_space = ""
        self._num_calls += 1
        if self._is_wanted:
            self._parts.append(CallStart(self._num_calls - 1, name))

    def _add_arguments(self, text: str) -> None:
        if self._is_wanted:
            self._parts.append(CallArguments(self._num_calls - 1, text))

    @property
    def _is_wanted(self) -> bool:
        return self._max_calls is None or self._num_calls <= self._max_calls

    def _push_object(self, call: CallObject, character: str) -> None:
        """Add a character to a call; tell what is certain."""
        was_certain = call.name is not None
        call.push(character)
        if call.name is not None and not was_certain:
            self._start_call(call.name)
        arguments = call.take_arguments()
        if arguments:
            self._add_arguments(arguments)

    def _take(self) -> list[Part]:
        parts, self._parts = merged(self._parts), []
        return [part for part in parts if not isinstance(part, Content | CallArguments) or part.text]


class MarkFinder:
    """Looks for a mark in a text, character by character.

    Args:
        mark: not empty.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.held = ""
        """The end of the text that the mark begins with."""

    def push(self, character: str) -> tuple[str, bool]:
        """Text that is certainly no part of the mark, and whether the mark is complete now."""
        text = self.held + character
        if text == self._mark:
            self.held = ""
            return "", True
        start = 0
        while not self._mark.startswith(text[start:]):
            start += 1
        self.held = text[start:]
        return text[:start], False

    def take(self) -> str:
        """What is held, which is held no longer."""
        held, self.held = self.held, ""
        return held
