"""JSON Schema to a grammar: every keyword is enforced, or refused with its name and place. Pure.

The compiler (llguidance) refuses keywords of the standard that it does not know; what it would take in silence, or in
another sense than the standard's, is refused or rewritten here. Source: JSON Schema 2020-12, "Core" and "Validation".
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from llguidance import LLMatcher

from forebay_server.errors import InvalidRequestError

MAX_DEPTH = 60
"""Schemas in schemas; the compiler reads at most 128 levels of JSON."""
MAX_SCHEMA_BYTES = 512 * 1024
WHITESPACE_PATTERN = r"[ \n\r\t]{1,32}"
"""Between tokens of JSON: bounded, or a model that likes line breaks writes nothing else until max_tokens."""

Schema = Mapping[str, Any] | bool

_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("additionalProperties", "items", "additionalItems")

_NEUTRAL_VALUES: Final[dict[str, tuple[object, ...]]] = {
    "$dynamicRef": (),
    "$recursiveRef": (),
    "contains": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "else": (True, {}),
    "if": (True, {}),
    "maxContains": (),
    "minContains": (),
    "not": (False,),
    "nullable": (False,),
    "propertyNames": (True, {}),
    "then": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "uniqueItems": (False,),
}
"""Keywords that cannot be enforced while tokens are picked one by one, with the values that ask for nothing."""

_FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
_NO_LEAP_SECONDS = {"date-time": "T[0-9]{2}:[0-9]{2}:[0-5]", "time": "^[0-9]{2}:[0-9]{2}:[0-5]"}
"""A 60th second is right only at a few moments of history."""


def json_schema_grammar(schema: Schema, where: str) -> str:
    """The schema as it goes into a grammar after `%json`.

    Args:
        schema: as the client wrote it.
        where: the field of the request that it came in, for errors.

    Raises:
        InvalidRequestError: a keyword cannot be enforced, or the schema is wrong or allows nothing.
    """
    prepared = _prepare(schema, where, where, 0)
    if isinstance(prepared, dict):
        prepared["x-guidance"] = {"whitespace_pattern": WHITESPACE_PATTERN}
    text = _dump(prepared, where)
    error = _error_of(text)
    if error is not None:
        raise _located(prepared, where, error)
    return text


def _prepare(schema: object, path: str, where: str, depth: int) -> Any:
    """A checked copy of a schema, without what asks for nothing."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{path} is {_short(schema)}; a schema is an object or a boolean", param=where)
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"{where} is nested deeper than {MAX_DEPTH} schemas", param=where)
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        place = f"{path}.{keyword}"
        if keyword in _NEUTRAL_VALUES:
            if not any(value == neutral and type(value) is type(neutral) for neutral in _NEUTRAL_VALUES[keyword]):
                raise _cannot_enforce(keyword, place, where)
        elif keyword == "x-guidance":
            raise _cannot_enforce(keyword, place, where)
        elif keyword in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            result[keyword] = {
                name: _prepare(inner, f"{place}.{name}", where, depth + 1) for name, inner in value.items()
            }
        elif keyword in (*_LISTS_OF_SCHEMAS, "items") and isinstance(value, list):
            result[keyword] = [
                _prepare(inner, f"{place}[{index}]", where, depth + 1) for index, inner in enumerate(value)
            ]
        elif keyword in _SCHEMAS:
            result[keyword] = _prepare(value, place, where, depth + 1)
        else:
            _check_value(keyword, value, schema, place, where)
            result[keyword] = value
    tightened = _NO_LEAP_SECONDS.get(str(result.get("format")))
    if tightened is not None:
        result["allOf"] = [*result.get("allOf", ()), {"pattern": tightened}]
    return result


def _check_value(keyword: str, value: object, schema: Mapping[str, Any], place: str, where: str) -> None:
    """Refuse values that would be taken in another sense than the standard's."""
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        raise InvalidRequestError(f"{place} is a boolean (draft 4); since draft 6 it is a number", param=where)
    if keyword == "multipleOf" and not (isinstance(value, int | float) and value > 0):
        raise InvalidRequestError(f"{place} is {_short(value)}; it must be a number above 0", param=where)
    if keyword == "format" and value not in _FORMATS and _can_be_string(schema):
        raise InvalidRequestError(
            f"{place} {_short(value)} cannot be enforced; these can: {', '.join(_FORMATS)}", param=where
        )


def _can_be_string(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", "string")
    return "string" in kinds if isinstance(kinds, list) else kinds == "string"


def _cannot_enforce(keyword: str, place: str, where: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the JSON Schema keyword {keyword!r} at {place} cannot be enforced; leave it out and check it in the answer",
        param=where,
        code="unsupported_schema",
    )


def _located(schema: Any, where: str, error: str) -> InvalidRequestError:
    """The error with the innermost place that has it by itself."""
    root = schema if isinstance(schema, dict) else {}
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    for place, inner in _subschemas(schema, where):
        own = inner if isinstance(inner, bool) else {**definitions, **inner}
        own_error = _error_of(json.dumps(own))
        if own_error is not None and (own_error == error or "Pointer" not in own_error):
            place_of_error, error = place, own_error
            break
    else:
        place_of_error = where
    if error.startswith("oneOf"):
        error = "oneOf cannot be enforced where its alternatives overlap; use anyOf"
    return InvalidRequestError(f"{place_of_error}: {error}", param=where, code="unsupported_schema")


def _subschemas(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every schema in a schema and itself, the innermost first."""
    if isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword in _MAPS_OF_SCHEMAS and isinstance(value, dict):
                for name, inner in value.items():
                    yield from _subschemas(inner, f"{path}.{keyword}.{name}")
            elif keyword in (*_LISTS_OF_SCHEMAS, "items") and isinstance(value, list):
                for index, inner in enumerate(value):
                    yield from _subschemas(inner, f"{path}.{keyword}[{index}]")
            elif keyword in _SCHEMAS and isinstance(value, dict):
                yield from _subschemas(value, f"{path}.{keyword}")
        yield path, schema


def _error_of(schema_text: str) -> str | None:
    """What the compiler has against a schema."""
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema_text))
    return error.split("<state>")[0].strip()[:300] or None


def _dump(schema: object, where: str) -> str:
    try:
        text = json.dumps(schema, allow_nan=False)
    except ValueError as error:
        raise InvalidRequestError(f"{where} has a number that JSON does not know", param=where) from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidRequestError(
            f"{where} is {len(text)} bytes long; at most {MAX_SCHEMA_BYTES} are compiled", param=where
        )
    return text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
