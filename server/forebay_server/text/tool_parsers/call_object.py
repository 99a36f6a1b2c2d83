"""CallObject: one tool call written as a JSON object, such as `{"name": "f", "arguments": {"a": 1}}`.

As soon as the name is that of a tool and an object of arguments begins, it is a call and its arguments can be told
while they grow. Members in another order are understood when the object is whole.
"""

import json
import re

from forebay_server.text.tool_parsers.json_scanner import JsonScanner

_HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*',
    re.DOTALL,
)


class CallObject:
    """One call, or what turns out to be none.

    Args:
        names: of the tools.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._scanner = JsonScanner()
        self._in_arguments = False
        self._new_arguments = ""
        self.raw = ""
        """Everything pushed so far, until it is certain that it is a call."""
        self.name: str | None = None
        """Set when it is certain that this is a call."""
        self.is_done = False
        self.is_broken = False
        """What came is no JSON, or no call; the last character pushed is the first that does not belong to one."""

    def push(self, character: str) -> None:
        """Add one character, the first being `{`."""
        self._scanner.push(character)
        self.is_done = self._scanner.is_done
        if self._scanner.is_broken:
            self.is_broken = True
        elif self._in_arguments:
            self._new_arguments += character
            self._in_arguments = self._scanner.depth > 1
        if self.name is None:
            self._push_before_certain(character)

    def take_arguments(self) -> str:
        """The arguments that are new since the last call."""
        new, self._new_arguments = self._new_arguments, ""
        return new

    def _push_before_certain(self, character: str) -> None:
        self.raw += character
        if self.is_broken:
            return
        if self.is_done:
            self._read_whole()
        elif character == "{" and self._scanner.depth == 2 and not self._scanner.in_string:
            head = _HEAD.fullmatch(self.raw[:-1])
            if head is not None and self._accept(_loads(head[1])):
                self._in_arguments = True
                self._new_arguments = character

    def _accept(self, name: object) -> bool:
        if isinstance(name, str) and name in self._names:
            self.name = name
            return True
        self.is_broken = True
        return False

    def _read_whole(self) -> None:
        """An object whose beginning did not look like a call."""
        members = _loads(self.raw)
        if not isinstance(members, dict):
            self.is_broken = True
            return
        arguments: object = next((members[key] for key in ("arguments", "parameters") if key in members), {})
        if isinstance(arguments, str):
            arguments = _loads(arguments)
        if isinstance(arguments, dict) and self._accept(members.get("name")):
            self._new_arguments = json.dumps(arguments, ensure_ascii=False)
        else:
            self.is_broken = True


def _loads(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
