"""JSON Schema to a grammar: every keyword is enforced, or refused with its name and place. Pure.

The compiler (llguidance) refuses keywords of the standard that it does not know; what it would take in silence, or in
another sense than the standard's, is refused or rewritten here. Source: JSON Schema 2020-12, "Core" and "Validation".
"""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from llguidance import LLMatcher

from forebay_server.errors import InvalidRequestError
from forebay_server.structured.patterns import portable_pattern
from forebay_server.structured.references import (
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    SCHEMAS,
    leads_to_itself,
    leads_to_schema,
    pointer_tokens,
    replace_at,
)

MAX_DEPTH = 60
"""Schemas in schemas; the compiler reads at most 128 levels of JSON."""
MAX_SCHEMA_BYTES = 512 * 1024
WHITESPACE_PATTERN = r"[ \n\r\t]{1,32}"
"""Between tokens of JSON: bounded, or a model that likes line breaks writes nothing else until max_tokens."""

Schema = Mapping[str, Any] | bool

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

_FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
_NO_LEAP_SECONDS = {"date-time": "T[0-9]{2}:[0-9]{2}:[0-5]", "time": "^[0-9]{2}:[0-9]{2}:[0-5]"}
"""A 60th second is right only at a few moments of history."""
_ADVICE = {
    "dependentRequired": "use anyOf",
    "dependentSchemas": "use anyOf",
    "if": "use anyOf",
    "nullable": "add null to type",
    "propertyNames": "use patternProperties with additionalProperties: false",
}
_SMALLEST_GAP = 1e-12
"""Of a number from a bound that it must not reach, relative to the bound: readers round further digits away."""


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
        prepared = _prepare_targets(prepared, where)
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
        elif keyword == "x-guidance" or (keyword == "$id" and depth):
            raise _cannot_enforce(keyword, place, where)
        elif keyword == "$id":
            pass  # references within the schema are all that are followed
        elif keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
            result[keyword] = {
                _pattern(name, place, where) if keyword == "patternProperties" else name: _prepare(
                    inner, f"{place}.{name}", where, depth + 1
                )
                for name, inner in value.items()
            }
        elif keyword in (*LISTS_OF_SCHEMAS, "items") and isinstance(value, list):
            result[keyword] = [
                _prepare(inner, f"{place}[{index}]", where, depth + 1) for index, inner in enumerate(value)
            ]
        elif keyword in SCHEMAS:
            result[keyword] = _prepare(value, place, where, depth + 1)
        else:
            _check_value(keyword, value, schema, place, where)
            result[keyword] = _pattern(value, place, where) if keyword == "pattern" else value
    _keep_from_bounds(result)
    tightened = _NO_LEAP_SECONDS.get(str(result.get("format")))
    if tightened is not None:
        result["allOf"] = [*result.get("allOf", ()), {"pattern": tightened}]
    return result


def _prepare_targets(root: dict[str, Any], where: str) -> dict[str, Any]:
    """Check schemas that are nowhere but where a `$ref` leads, such as `#/components/schemas/a`, like the others."""
    seen: set[str] = set()
    pending: list[Any] = [root]
    while pending:
        for place, inner in _subschemas(pending.pop(), where):
            reference = inner.get("$ref")
            if not isinstance(reference, str) or reference in seen:
                continue
            seen.add(reference)
            tokens = pointer_tokens(reference)
            if tokens is None:
                raise InvalidRequestError(
                    f"{place}.$ref {_short(reference)} cannot be followed; #/... within the schema can", param=where
                )
            if not leads_to_schema(tokens):
                target = f"{where}.{'.'.join(tokens)}"

                def prepare(found: object, target: str = target) -> Any:
                    pending.append(_prepare(found, target, where, 1))
                    return pending[-1]

                root = replace_at(root, tokens, prepare)
    for reference in sorted(seen):
        if leads_to_itself(root, reference):
            raise InvalidRequestError(
                f"{where}: the $ref {_short(reference)} leads back to itself and to no schema", param=where
            )
    return root


def _pattern(value: Any, place: str, where: str) -> Any:
    try:
        return portable_pattern(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidRequestError(f"{place} {error}", param=where) from error


def _keep_from_bounds(schema: dict[str, Any]) -> None:
    """Turn bounds that numbers must not reach into such that they may, a gap further from zero.

    The other bounds stay: `4.9` could not be written below a bound of 4.99, whose beginning it is (llguidance 1.9).
    """
    if schema.get("type") == "integer":
        return
    for exclusive, inclusive, sign in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        bound = schema.get(exclusive)
        if not isinstance(bound, int | float) or isinstance(bound, bool) or bound * sign < 0:
            continue
        del schema[exclusive]
        kept = [bound + sign * max(1.0, abs(bound)) * _SMALLEST_GAP]
        kept += [schema[inclusive]] if isinstance(schema.get(inclusive), int | float) else []
        schema[inclusive] = max(kept) if sign > 0 else min(kept)


def _check_value(keyword: str, value: object, schema: Mapping[str, Any], place: str, where: str) -> None:
    """Refuse values that would be taken in another sense than the standard's."""
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        raise InvalidRequestError(f"{place} is a boolean (draft 4); since draft 6 it is a number", param=where)
    if keyword == "multipleOf" and not (isinstance(value, int | float) and value > 0):
        raise InvalidRequestError(f"{place} is {_short(value)}; it must be a number above 0", param=where)
    if isinstance(value, float) and keyword == "multipleOf" and Fraction(value) != Fraction(repr(value)):
        raise InvalidRequestError(
            f"{place} {value!r} cannot be enforced: it has no exact binary form, so that readers disagree about its "
            "multiples; use an integer of smaller units",
            param=where,
            code="unsupported_schema",
        )
    if keyword == "minProperties" and _names_may_repeat(value, schema):
        raise InvalidRequestError(
            f"{place} cannot be enforced where names are free, since one could come twice; require the names",
            param=where,
        )
    if keyword == "format" and value not in _FORMATS and _can_be_string(schema):
        raise InvalidRequestError(
            f"{place} {_short(value)} cannot be enforced; these can: {', '.join(_FORMATS)}", param=where
        )


def _names_may_repeat(least: object, schema: Mapping[str, Any]) -> bool:
    """Whether members beyond the required ones would be needed whose names the schema does not give."""
    required = schema.get("required")
    num_required = len(set(map(str, required))) if isinstance(required, list) else 0
    is_open = schema.get("additionalProperties") is not False or bool(schema.get("patternProperties"))
    return isinstance(least, int) and least > num_required and is_open


def _can_be_string(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", "string")
    return "string" in kinds if isinstance(kinds, list) else kinds == "string"


def _cannot_enforce(keyword: str, place: str, where: str) -> InvalidRequestError:
    advice = _ADVICE.get(keyword, "leave it out and check it in the answer")
    return InvalidRequestError(
        f"the JSON Schema keyword {keyword!r} at {place} cannot be enforced; {advice}",
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
            if keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
                for name, inner in value.items():
                    yield from _subschemas(inner, f"{path}.{keyword}.{name}")
            elif keyword in (*LISTS_OF_SCHEMAS, "items") and isinstance(value, list):
                for index, inner in enumerate(value):
                    yield from _subschemas(inner, f"{path}.{keyword}[{index}]")
            elif keyword in SCHEMAS and isinstance(value, dict):
                yield from _subschemas(value, f"{path}.{keyword}")
        yield path, schema


@lru_cache(maxsize=64)
def _error_of(schema_text: str) -> str | None:
    """What the compiler has against a schema; kept, since many requests bring the same one."""
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
