"""Regular expressions as ECMAScript and Python both read them, in the words of the compiler's (Rust's) dialect. Pure.

A text that the result matches is one that the others match, too: where dialects differ, the narrower one holds.
Sources: ECMA-262, "Patterns" (with the u flag, as JSON Schema recommends); Python's `re`; the `regex` crate's syntax.
"""

from typing import Final

_SPACE = r" \t\n\r\f\v"
_IN_CLASS: Final[dict[str, str]] = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACE}
_ALONE: Final[dict[str, str]] = {
    **{name: f"[{members}]" for name, members in _IN_CLASS.items()},
    "S": r"[^\s\x1c-\x1f\ufeff]",
    "W": r"[^\w\p{N}]",
}
_DOT = r"[^\n\r\u2028\u2029]"


def portable_pattern(pattern: str) -> str:
    r"""The pattern for the compiler: `\d`, `\w` and `\s` are ASCII's, and a class holds what stands in it.

    Args:
        pattern: as a client wrote it; it may be wrong, which the compiler says.

    Raises:
        ValueError: a class such as `[[:alpha:]]`, which every dialect takes for something else.
    """
    parts: list[str] = []
    in_class = False
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\" and position + 1 < len(pattern):
            name = pattern[position + 1]
            table = _IN_CLASS if in_class else _ALONE
            parts.append(table.get(name, character + name))
            position += 2
            continue
        if in_class:
            if pattern.startswith("[:", position):
                raise ValueError("holds a POSIX class such as [:alpha:]; write its members, such as a-zA-Z")
            in_class = character != "]"
            parts.append(f"\\{character}" if character in "[&~" else character)
        elif character == "[":
            in_class = True
            parts.append(character)
        else:
            parts.append(_DOT if character == "." else character)
        position += 1
    return "".join(parts)
