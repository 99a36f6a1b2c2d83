"""V-11: every keyword of a schema is enforced, or refused with its name and place."""

import json
from typing import Any

import jsonschema
import pytest

from forebay_server.errors import InvalidRequestError
from forebay_server.structured.json_schema import MAX_SCHEMA_BYTES, json_schema_grammar
from tests.test_server.structured.random_text import random_text

WHERE = "response_format.json_schema.schema"
INTEGER = {"type": "integer"}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


ENFORCED: dict[str, Any] = {
    "pattern and lengths": {"type": "string", "pattern": "^a+$", "minLength": 5, "maxLength": 8},
    "pattern anywhere": {"type": "string", "pattern": "[0-9]b", "maxLength": 6},
    "pattern of digits": {"type": "string", "pattern": r"^\d{3}-\d{2}$"},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 3},
    "integer range": {"type": "integer", "minimum": -5, "exclusiveMaximum": 17},
    "number range": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.75},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 100},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [INTEGER, {"type": "null"}], "items": False, "minItems": 2},
    "tuple of draft 7": {"type": "array", "items": [INTEGER, {"type": "null"}], "additionalItems": False},
    "enum": {"enum": ["a", 1, None, 2.5, {"x": [1]}, 'é\n"']},
    "enum and type": {"type": "string", "enum": ["a", 1, "b"]},
    "const": {"const": {"a": [1, 2]}},
    "types": {"type": ["integer", "null"], "minimum": 3},
    "any of": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "maximum": 3}]},
    "any of, with siblings": closed(a=INTEGER) | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "all of": {"allOf": [closed(a=INTEGER, b={"type": "boolean"}), {"properties": {"a": {"minimum": 3}}}]},
    "one of, apart": {"oneOf": [closed(kind={"const": "a"}), closed(kind={"const": "b"}, n=INTEGER)]},
    "optional": closed(a=INTEGER, b={"type": "null"}) | {"required": []},
    "additional": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "number of properties": {"type": "object", "additionalProperties": INTEGER, "minProperties": 2, "maxProperties": 3},
    "pattern properties": {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False},
    "reference": closed(a={"$ref": "#/$defs/n"}) | {"$defs": {"n": {"type": "integer", "minimum": 3}}},
    "reference and more": {"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer", "minimum": 3}}},
    "recursion": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": closed(value={"type": "boolean"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
        },
    },
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "email": {"type": "string", "format": "email"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "format and pattern": {"type": "string", "format": "date", "pattern": "^2"},
    "what asks for nothing": closed(a=INTEGER) | {"uniqueItems": False, "not": False, "nullable": False, "if": True},
    "words about it": closed(a=INTEGER | {"description": "x", "default": 1, "examples": [{"not": 1}], "title": "A"}),
    "a property named like a keyword": closed(**{"not": INTEGER, "uniqueItems": {"type": "boolean"}}),
}


@pytest.mark.parametrize("name", ENFORCED)
def test_v11_schema_keywords_are_enforced(name: str) -> None:
    schema = ENFORCED[name]
    grammar = f"start: %json {json_schema_grammar(schema, WHERE)}"
    draft = jsonschema.Draft7Validator if "additionalItems" in schema else jsonschema.Draft202012Validator
    checker = draft(schema, format_checker=draft.FORMAT_CHECKER)
    texts = [text for seed in range(25) if (text := random_text(grammar, seed)) is not None]
    assert len(texts) > 5
    for text in texts:
        checker.validate(json.loads(text))


REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems", ".uniqueItems"),
    (closed(a={"not": {"type": "string"}}), "not", ".properties.a.not"),
    ({"anyOf": [INTEGER, {"if": {"minimum": 1}, "then": {"maximum": 3}}]}, "if", ".anyOf[1].if"),
    ({"type": "array", "items": {"type": "array", "contains": INTEGER}}, "contains", ".items.contains"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames", ".propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", ".dependentRequired"),
    ({"type": "object", "dependentSchemas": {"a": {}}}, "dependentSchemas", ".dependentSchemas"),
    ({"allOf": [{"unevaluatedProperties": False}]}, "unevaluatedProperties", ".allOf[0].unevaluatedProperties"),
    ({"$defs": {"x": {"nullable": True}}}, "nullable", ".$defs.x.nullable"),
    ({"type": "string", "format": "regex"}, "format", ".format"),
    ({"type": "integer", "exclusiveMinimum": True, "minimum": 3}, "exclusiveMinimum", ".exclusiveMinimum"),
    ({"type": "integer", "multipleOf": 0}, "multipleOf", ".multipleOf"),
    (closed(a={"type": "string", "pattern": "("}), "", ".properties.a:"),
    (closed(a={"type": "string", "pattern": "^(?=a)"}), "", ".properties.a:"),
    (closed(a={"oneOf": [INTEGER, {"minimum": 3}]}), "oneOf", ".properties.a:"),
    (closed(a={"type": "integer", "minimum": 5, "maximum": 3}), "minimum", ".properties.a:"),
    (
        closed(a={"type": "object", "minProperties": 3, "properties": {"b": INTEGER}, "additionalProperties": False}),
        "Properties",
        ".properties.a:",
    ),
    ({"type": "objec"}, "objec", ":"),
    ({"$ref": "#/$defs/nothing"}, "nothing", ":"),
    ({"$ref": "https://example.com/schema.json"}, "example.com", ":"),
    ({"properties": []}, "properties", ":"),
    ({"minLength": "3"}, "minLength", ":"),
    ({"properties": {"a": 5}}, "5", ".properties.a"),
    ({"minimum": float("inf")}, "number", ""),
    ({"x-guidance": {"lenient": True}}, "x-guidance", ".x-guidance"),
    (False, "false", ":"),
    (7, "7", ""),
]


@pytest.mark.parametrize(("schema", "word", "place"), REFUSED, ids=[word for _, word, _ in REFUSED])
def test_v9_v11_other_schemas_are_refused_naming_keyword_and_place(schema: Any, word: str, place: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        json_schema_grammar(schema, WHERE)
    assert f"{WHERE}{place}" in refusal.value.message
    assert word in refusal.value.message
    assert refusal.value.param == WHERE


def test_deep_and_large_schemas_are_refused() -> None:
    deep: dict[str, Any] = dict(INTEGER)
    for _ in range(2000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(InvalidRequestError, match="nested deeper than"):
        json_schema_grammar(deep, WHERE)
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_SCHEMA_BYTES}"):
        json_schema_grammar({"enum": ["x" * 100] * 10_000}, WHERE)


def test_white_space_is_bounded() -> None:
    grammar = f"start: %json {json_schema_grammar(closed(a=INTEGER), WHERE)}"
    texts = [random_text(grammar, seed) or "" for seed in range(10)]
    assert all(" " * 33 not in text and "\n" * 33 not in text for text in texts)
