"""Calls as Llama 3 models write them: the answer is `{"name": ..., "parameters": {...}}`, or several after `;`."""

from enum import Enum, auto

from forebay_server.text.tool_parsers.call_object import CallObject
from forebay_server.text.tool_parsers.machine import CallMachine

PYTHON_TAG = "<|python_tag|>"


class _State(Enum):
    START = auto()
    OBJECT = auto()
    BETWEEN = auto()
    TEXT = auto()


class Llama3JsonParser(CallMachine):
    """See `CallMachine`; an answer that does not begin with a call has none."""

    def __init__(self, names: frozenset[str], max_calls: int | None = None) -> None:
        super().__init__(names, max_calls)
        self._state = _State.START
        self._call = CallObject(names)
        self._raw = ""
        """Before the object."""

    def _push(self, character: str) -> None:
        match self._state:
            case _State.START | _State.BETWEEN if character == "{":
                self._state, self._call = _State.OBJECT, CallObject(self._names)
                self._push_object(self._call, character)
            case _State.START:
                self._raw += character
                if not PYTHON_TAG.startswith(self._raw.strip()):
                    self._rest_is_text(self._raw)
            case _State.BETWEEN:
                self._raw += character
                if not (character.isspace() or character in ";,"):
                    self._rest_is_text(self._raw)
            case _State.OBJECT:
                self._push_object(self._call, character)
                if self._call.is_broken:
                    is_call = self._call.name is not None
                    self._rest_is_text(character if is_call else self._raw + self._call.raw)
                elif self._call.is_done:
                    self._state, self._raw = _State.BETWEEN, ""
            case _State.TEXT:
                self._say(character)

    def _rest_is_text(self, text: str) -> None:
        self._state = _State.TEXT
        self._say(text)

    def _finish(self) -> None:
        match self._state:
            case _State.START:
                self._say(self._raw)
            case _State.OBJECT if self._call.name is None:
                self._say(self._raw + self._call.raw)
            case _:
                pass
