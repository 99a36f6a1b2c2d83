"""Calls as Hermes and Qwen models write them: each is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from enum import Enum, auto

from forebay_server.text.tool_parsers.call_object import CallObject
from forebay_server.text.tool_parsers.machine import CallMachine, MarkFinder

START, END = "<tool_call>", "</tool_call>"


class _State(Enum):
    TEXT = auto()
    BEFORE_OBJECT = auto()
    OBJECT = auto()
    AFTER_OBJECT = auto()


class HermesParser(CallMachine):
    """See `CallMachine`."""

    def __init__(self, names: frozenset[str], max_calls: int | None = None) -> None:
        super().__init__(names, max_calls)
        self._state = _State.TEXT
        self._start = MarkFinder(START)
        self._call = CallObject(names)
        self._raw = ""
        """From the start mark to the object, or after it."""

    def _push(self, character: str) -> None:
        match self._state:
            case _State.TEXT:
                text, is_call = self._start.push(character)
                self._say(text)
                if is_call:
                    self._state, self._raw = _State.BEFORE_OBJECT, START
            case _State.BEFORE_OBJECT:
                if character == "{":
                    self._state, self._call = _State.OBJECT, CallObject(self._names)
                    self._push_object(self._call, character)
                else:
                    self._raw += character
                    if not character.isspace():
                        self._no_call()
            case _State.OBJECT:
                self._push_object(self._call, character)
                if self._call.is_broken:
                    self._broken(character)
                elif self._call.is_done:
                    self._state, self._raw = _State.AFTER_OBJECT, ""
            case _State.AFTER_OBJECT:
                self._raw += character
                end = self._raw.lstrip()
                if end == END or not END.startswith(end):
                    self._state, raw = _State.TEXT, self._raw
                    self._push_again("" if end == END else raw)

    def _broken(self, character: str) -> None:
        if self._call.name is None:
            self._raw += self._call.raw
            self._no_call()
        else:  # what was told of the call stands
            self._state = _State.TEXT
            self._push(character)

    def _no_call(self) -> None:
        """The mark was mere text; what followed may hold another one."""
        raw, self._state = self._raw, _State.TEXT
        self._say(raw[0])
        self._push_again(raw[1:])

    def _finish(self) -> None:
        match self._state:
            case _State.TEXT:
                self._say(self._start.take())
            case _State.BEFORE_OBJECT:
                self._say(self._raw)
            case _State.OBJECT if self._call.name is None:
                self._say(self._raw + self._call.raw)
            case _:
                pass
