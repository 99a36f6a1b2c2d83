"""Where `$ref` leads inside a JSON Schema. Pure. Source: JSON Schema 2020-12, "Core"; RFC 6901 (JSON Pointer)."""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMAS = ("additionalProperties", "items", "additionalItems")


def pointer_tokens(reference: str) -> list[str] | None:
    """The tokens of `#/...`; None: it is no pointer into the same schema."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    return [token.replace("~1", "/").replace("~0", "~") for token in unquote(reference[1:]).split("/")[1:]]


def leads_to_schema(tokens: Iterable[str]) -> bool:
    """Whether a pointer only goes through keywords that hold schemas, and ends at one."""
    holder = ""
    for token in tokens:
        if holder:  # a name or a number in a map or a list of schemas
            holder = ""
        elif token in MAPS_OF_SCHEMAS or token in LISTS_OF_SCHEMAS:
            holder = token
        elif token not in SCHEMAS:
            return False
    return not holder


def leads_to_itself(root: Any, reference: str) -> bool:
    """Whether following a `$ref`, and the `$ref` where it leads, never ends: such a schema says nothing."""
    followed: set[str] = set()
    while reference not in followed:
        followed.add(reference)
        found = _value_at(root, pointer_tokens(reference) or [])
        following = found.get("$ref") if isinstance(found, dict) else None
        if not isinstance(following, str):
            return False
        reference = following
    return True


def _value_at(root: Any, tokens: list[str]) -> Any:
    for token in tokens:
        if isinstance(root, dict):
            root = root.get(token)
        else:
            root = root[int(token)] if isinstance(root, list) and token.isdecimal() and int(token) < len(root) else None
    return root


def replace_at(root: Any, tokens: list[str], change: Callable[[Any], Any]) -> Any:
    """A copy of a JSON value with one place changed; the value itself when the place is not there.

    Args:
        root: objects and lists.
        tokens: of the pointer to the place.
        change: from what is there to what shall be.
    """
    if not tokens:
        return change(root)
    first, rest = tokens[0], tokens[1:]
    if isinstance(root, dict) and first in root:
        return {**root, first: replace_at(root[first], rest, change)}
    if isinstance(root, list) and first.isdecimal() and int(first) < len(root):
        index = int(first)
        return [*root[:index], replace_at(root[index], rest, change), *root[index + 1 :]]
    return root
