"""Calls as Mistral models write them: `[TOOL_CALLS]`, then a JSON array of objects, or (since 2025) `name{...}`."""

import re
from enum import Enum, auto

from forebay_server.text.tool_parsers.call_object import CallObject
from forebay_server.text.tool_parsers.json_scanner import JsonScanner
from forebay_server.text.tool_parsers.machine import CallMachine, MarkFinder

MARK = "[TOOL_CALLS]"
ARGUMENTS_MARK = "[ARGS]"
_NAME = re.compile(r"\s*([\w.:/-]+?)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*")
_MAX_NAME_CHARACTERS = 256


class _State(Enum):
    TEXT = auto()
    AFTER_MARK = auto()
    IN_ARRAY = auto()
    OBJECT = auto()
    NAME = auto()
    ARGUMENTS = auto()


class MistralParser(CallMachine):
    """See `CallMachine`."""

    def __init__(self, names: frozenset[str], max_calls: int | None = None) -> None:
        super().__init__(names, max_calls)
        self._state = _State.TEXT
        self._mark = MarkFinder(MARK)
        self._call = CallObject(names)
        self._arguments = JsonScanner()
        self._raw = ""
        """From the mark, or from the end of a call, on."""

    def _push(self, character: str) -> None:
        match self._state:
            case _State.TEXT:
                text, is_call = self._mark.push(character)
                self._say(text)
                if is_call:
                    self._state, self._raw = _State.AFTER_MARK, MARK
            case _State.AFTER_MARK:
                self._raw += character
                if character == "[":
                    self._state = _State.IN_ARRAY
                elif not character.isspace():
                    self._state, raw = _State.NAME, self._raw
                    self._raw = raw[:-1]
                    self._push(character)
            case _State.IN_ARRAY:
                self._push_in_array(character)
            case _State.OBJECT:
                self._push_object(self._call, character)
                if self._call.is_broken:
                    self._no_call(character if self._call.name else self._raw + self._call.raw)
                elif self._call.is_done:
                    self._state, self._raw = _State.IN_ARRAY, ""
            case _State.NAME:
                self._push_name(character)
            case _State.ARGUMENTS:
                self._arguments.push(character)
                if self._arguments.is_broken:
                    self._no_call(character)
                else:
                    self._add_arguments(character)
                    if self._arguments.is_done:
                        self._state = _State.TEXT

    def _push_in_array(self, character: str) -> None:
        if character == "{":
            self._state, self._call = _State.OBJECT, CallObject(self._names)
            self._push_object(self._call, character)
        elif character == "]" and not self._raw.strip():
            self._state = _State.TEXT
        else:
            self._raw += character
            if not (character.isspace() or (character == "," and self._raw.strip() == ",")):
                self._no_call(self._raw)

    def _push_name(self, character: str) -> None:
        if character != "{":
            self._raw += character
            if len(self._raw) > _MAX_NAME_CHARACTERS:
                self._no_call(self._raw)
            return
        name = _NAME.fullmatch(self._raw.removeprefix(MARK))
        if name is None or name[1] not in self._names:
            self._no_call(self._raw + character)
            return
        self._start_call(name[1])
        self._state, self._arguments = _State.ARGUMENTS, JsonScanner()
        self._push(character)

    def _no_call(self, text: str) -> None:
        self._state = _State.TEXT
        self._say(text[:1])
        self._push_again(text[1:])

    def _finish(self) -> None:
        match self._state:
            case _State.TEXT:
                self._say(self._mark.take())
            case _State.AFTER_MARK | _State.NAME | _State.IN_ARRAY if self._raw.startswith(MARK):
                self._say(self._raw)
            case _State.OBJECT if self._call.name is None:
                self._say(self._raw + self._call.raw)
            case _:
                pass
