"""JsonScanner: follows a JSON object or array character by character and says where it ends or breaks.

Source: RFC 8259; escapes in strings are not looked at.
"""

import re
from enum import Enum, auto

_WHITESPACE = " \t\n\r"
_ATOM = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ATOM_CHARACTERS = frozenset("+-.0123456789Eaeflnrstu")


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonScanner:
    """One value; its first character is `{` or `[`."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._expected = _Expect.VALUE
        self._in_string = False
        self._is_escaped = False
        self._atom = ""
        self.is_done = False
        self.is_broken = False

    @property
    def depth(self) -> int:
        """Objects and arrays that are open."""
        return len(self._open)

    @property
    def in_string(self) -> bool:
        """Whether the next character is a string's."""
        return self._in_string

    def push(self, character: str) -> None:
        """Add one character; none may follow when it is done or broken."""
        if self._in_string:
            self._push_in_string(character)
        elif character in _ATOM_CHARACTERS:
            self._push_atom(character)
        elif self._end_atom():
            self._push_structure(character)

    def _push_in_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
        elif character < " ":
            self.is_broken = True

    def _push_atom(self, character: str) -> None:
        if not self._atom:
            if not self._open or self._expected not in (_Expect.VALUE, _Expect.VALUE_OR_END):
                self.is_broken = True
            self._expected = _Expect.COMMA_OR_END
        self._atom += character

    def _end_atom(self) -> bool:
        """Check the number or word that ends here, if one does."""
        atom, self._atom = self._atom, ""
        if atom and _ATOM.fullmatch(atom) is None:
            self.is_broken = True
        return not self.is_broken

    def _push_structure(self, character: str) -> None:
        expected = self._expected
        if character in _WHITESPACE:
            self.is_broken = not self._open
        elif character in "{[" and expected in (_Expect.VALUE, _Expect.VALUE_OR_END):
            self._open.append(character)
            self._expected = _Expect.KEY_OR_END if character == "{" else _Expect.VALUE_OR_END
        elif character == '"' and self._open and expected is not _Expect.COLON and expected is not _Expect.COMMA_OR_END:
            self._in_string = True
            is_key = expected in (_Expect.KEY, _Expect.KEY_OR_END)
            self._expected = _Expect.COLON if is_key else _Expect.COMMA_OR_END
        elif character == ":" and expected is _Expect.COLON:
            self._expected = _Expect.VALUE
        elif character == "," and expected is _Expect.COMMA_OR_END:
            self._expected = _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE
        elif self._closes(character):
            self._open.pop()
            self._expected = _Expect.COMMA_OR_END
            self.is_done = not self._open
        else:
            self.is_broken = True

    def _closes(self, character: str) -> bool:
        if not self._open or {"{": "}", "[": "]"}[self._open[-1]] != character:
            return False
        empty = _Expect.KEY_OR_END if character == "}" else _Expect.VALUE_OR_END
        return self._expected in (empty, _Expect.COMMA_OR_END)
