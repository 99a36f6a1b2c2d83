"""ThinkingGate: lets a model reason before its constrained answer, and says which tokens are the answer's.

Works on bytes, since marks such as `</think>` may be one token or several.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

MaskTable = npt.NDArray[np.uint32]
"""[ceil(vocab_size / 32)] or rows of that: token t is allowed where bit t % 32 of word t // 32 is 1."""
ALL_ALLOWED = np.uint32(0xFFFFFFFF)


class _State(Enum):
    UNDECIDED = auto()
    """The answer may begin with the start mark, of which a part may have come."""
    OPEN = auto()
    CLOSED = auto()


class Marks:
    """Both marks, and the tokens that matter for them; one for a model.

    Args:
        start: such as `<think>`.
        end: such as `</think>`.
        token_bytes: of every token id.
        eos_token_ids: that end an answer.
    """

    def __init__(self, start: str, end: str, token_bytes: Sequence[bytes], eos_token_ids: Iterable[int]) -> None:
        self.start, self.end = start.encode(), end.encode()
        self.token_bytes = token_bytes
        self.eos_token_ids = list(eos_token_ids)
        self.start_parts = {
            position: [i for i, text in enumerate(token_bytes) if text and self.start.startswith(text, position)]
            for position in range(len(self.start))
        }
        """Tokens that go on with the start mark, by how much of it is there."""
        over = [(i, text) for i, text in enumerate(token_bytes) if self.end[-1] in text[:-1]]
        self.overshooting = {
            position: [i for i, text in over if _has_more(self.end[:position] + text, self.end)]
            for position in range(len(self.end))
        }
        """Tokens that complete the end mark and say something after it, by how much of it is there."""


class ThinkingGate:
    """Where one answer is.

    Args:
        marks: of the model.
        is_open: whether the prompt ends inside the reasoning.
    """

    def __init__(self, marks: Marks, *, is_open: bool) -> None:
        self._marks = marks
        self._state = _State.OPEN if is_open else _State.UNDECIDED
        self._tail = b""
        """The part of a mark that the text ends with."""
        self.answer_is_possible = not is_open
        """While undecided: whether what came so far could be the answer's beginning, too."""

    @property
    def is_closed(self) -> bool:
        """Whether the grammar alone decides about the next token."""
        return self._state is _State.CLOSED

    @property
    def needs_grammar(self) -> bool:
        """Whether the grammar's mask is wanted for the next token."""
        return self._state is not _State.OPEN and self.answer_is_possible

    def widen(self, row: MaskTable) -> None:
        """Change the grammar's mask (all zero when it is not wanted) to what is allowed: in place."""
        if self._state is _State.OPEN:
            row.fill(ALL_ALLOWED)
            for token_id in (*self._marks.eos_token_ids, *self._marks.overshooting[len(self._tail)]):
                row[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        elif self._state is _State.UNDECIDED:
            for token_id in self._marks.start_parts[len(self._tail)]:
                row[token_id // 32] |= np.uint32(1 << token_id % 32)

    def push(self, token_id: int) -> None:
        """Take in a token, before the grammar does. `is_open` may change to closed, or undecided to either."""
        table = self._marks.token_bytes
        text = self._tail + (table[token_id] if token_id < len(table) else b"")
        if self._state is _State.UNDECIDED:
            self._begin(text)
        elif self._state is _State.OPEN:
            if self._marks.end in text:
                self._state, self.answer_is_possible = _State.CLOSED, True
            else:
                self._tail = _end_in_common(text, self._marks.end)

    def _begin(self, text: bytes) -> None:
        if text == self._marks.start:
            self._state, self._tail, self.answer_is_possible = _State.OPEN, b"", False
        elif self._marks.start.startswith(text):
            self._tail = text
        else:
            self._state = _State.CLOSED


def _end_in_common(text: bytes, mark: bytes) -> bytes:
    """The longest end of a text that the mark begins with, short of the whole mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return mark[:length]
    return b""


def _has_more(text: bytes, mark: bytes) -> bool:
    _, found, after = text.partition(mark)
    return bool(found and after.strip())
