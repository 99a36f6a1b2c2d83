"""V-11: every keyword of a schema is enforced, or refused with its name and place."""

import json
from typing import Any

import jsonschema
import pytest

from forebay_server.errors import InvalidRequestError
from forebay_server.structured.json_schema import MAX_SCHEMA_BYTES, json_schema_grammar
from tests.test_server.structured.random_text import allows, random_text

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
    "number of properties": closed(a=INTEGER, b=INTEGER) | {"minProperties": 2, "maxProperties": 3},
    "at most so many": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
    "nested objects": closed(a=closed(b=closed(c={"type": "array", "items": closed(d=INTEGER), "maxItems": 2}))),
    "nullable by type": closed(a={"type": ["string", "null"], "maxLength": 2}),
    "pattern and minimum of letters": {"type": "string", "pattern": r"^\\w+$", "minLength": 3, "maxLength": 5},
    "pattern without white space": {"type": "string", "pattern": r"^\\S\\s\\S\\W$"},
    "pattern of alternatives": {"type": "string", "pattern": "^a|b$", "maxLength": 4},
    "pattern of anchored alternatives": {"type": "string", "pattern": "^ab$|^cd$"},
    "pattern with a bracket in a class": {"type": "string", "pattern": r"^[ab[]{3}$"},
    "pattern of any character": {"type": "string", "pattern": "^.{2}$"},
    "pattern of letters of other scripts": {"type": "string", "pattern": "^[\u03b1-\u03c9]{2,4}$"},
    "just below": {"type": "number", "exclusiveMinimum": 4, "exclusiveMaximum": 5},
    "above zero": closed(a={"exclusiveMinimum": 0, "type": ["number", "null"], "maximum": 1}),
    "multiples of a half": {"type": "number", "multipleOf": 0.5, "minimum": -2, "maximum": 2},
    "integer in the other words": {"allOf": [{"type": "integer"}, {"exclusiveMaximum": 5, "exclusiveMinimum": 2}]},
    "enum of numbers": {"enum": [1.0, -2, 1e3]},
    "required that is not described": {"type": "object", "required": ["z"], "additionalProperties": INTEGER},
    "array of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "null"}, "minItems": 1},
        "maxItems": 3,
    },
    "pattern properties and others": {
        "type": "object",
        "properties": {"id": INTEGER},
        "patternProperties": {r"^x-\\d$": {"type": "boolean"}},
        "required": ["id"],
        "additionalProperties": False,
    },
    "definitions of draft 7": {
        "definitions": {"n": {"enum": ["é", "ü"]}},
        "items": {"$ref": "#/definitions/n"},
        "type": "array",
    },
    "reference elsewhere": {
        "$ref": "#/components/schemas/pair",
        "components": {
            "schemas": {"pair": closed(a={"$ref": "#/components/schemas/n"}), "n": {"type": "integer", "maximum": 3}}
        },
    },
    "reference to a property": closed(a={"type": "integer", "minimum": 7}, b={"$ref": "#/properties/a"}),
    "reference to the root": closed(value=INTEGER, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "reference with signs": {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"const": "x"}}},
    "duration": {"type": "string", "format": "duration"},
    "time": {"type": "string", "format": "time"},
    "hostname": {"type": "string", "format": "hostname", "maxLength": 20},
    "uri": {"type": "string", "format": "uri", "maxLength": 30},
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
    ({"type": "string", "format": "unknown"}, "format", ".format"),
    ({"type": "number", "multipleOf": 0.01}, "multipleOf", ".multipleOf"),
    ({"type": "object", "minProperties": 2}, "minProperties", ".minProperties"),
    ({"type": "object", "patternProperties": {"^a": {}}, "minProperties": 1}, "minProperties", ".minProperties"),
    ({"patternProperties": {"[[:alpha:]]": {}}}, "POSIX", ".patternProperties"),
    ({"type": "string", "pattern": "^[[:digit:]]$"}, "POSIX", ".pattern"),
    (
        {"items": {"$ref": "#/hidden"}, "hidden": {"type": "array", "uniqueItems": True}},
        "uniqueItems",
        ".hidden.uniqueItems",
    ),
    (
        {"$ref": "#/x/0", "x": [{"items": {"$ref": "#/y"}}], "y": {"nullable": True}},
        "nullable",
        ".y.nullable",
    ),
    ({"$ref": "#/x", "x": {"x-guidance": {"lenient": True}}}, "x-guidance", ".x.x-guidance"),
    ({"$ref": "other.json#/a"}, "other.json", ".$ref"),
    ({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}, "#name", ".$ref"),
    ({"$defs": {"a": {"$id": "https://example.com/a"}}, "$ref": "#/$defs/a"}, "$id", ".$defs.a.$id"),
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
    ({"$ref": "#"}, "leads back to itself", ":"),
    ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads back to itself", ":"),
    ({"items": {"$ref": "#/b/0"}, "b": [{"$ref": "#/c"}], "c": {"$ref": "#/b/0"}}, "leads back to itself", ":"),
    ({"$ref": "https://example.com/schema.json"}, "example.com", ".$ref"),
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


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        (r"^\d$", "7", "\u0663"),
        (r"^\w$", "_", "\u00e9"),
        (r"^\W$", "-", "\u00bd"),
        (r"^\W$", "\u2014", "a"),
        (r"^\S$", "\u00e9", "\u00a0"),
        (r"^\S$", "x", "\x1c"),
        (r"^\s$", " ", "\u2003"),
        (r"^[\s\d]$", "5", "\u0663"),
        (r"^[^\s]$", "a", " "),
        (r"^[[]$", "[", "a"),
        (r"^[a~~b]$", "~", "c"),
        (r"^\[\]$", "[]", "["),
        (r"^.$", "x", "\u2029"),
        ("^a|b$", "xb", "xa"),
        ("^a|b$", "ax", "bx"),
        (r"\.$", "x.", "x,"),
        (r"^\u00e9$", "\u00e9", "e"),
        (r"^\p{Lu}$", "\u00c9", "\u00e9"),
    ],
)
def test_patterns_are_read_as_the_standard_and_python_do(pattern: str, allowed: str, refused: str) -> None:
    grammar = f"start: %json {json_schema_grammar({'type': 'string', 'pattern': pattern}, WHERE)}"
    assert allows(grammar, json.dumps(allowed, ensure_ascii=False))
    assert not allows(grammar, json.dumps(refused, ensure_ascii=False))


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "number", "exclusiveMaximum": -5}, "-5.00000001", "-5." + "0" * 30 + "1"),
        ({"type": "number", "exclusiveMaximum": 5}, "4.99", "5.0"),
        ({"type": "number", "exclusiveMinimum": 0}, "0.000000001", "0." + "0" * 400 + "1"),
        ({"type": "integer", "exclusiveMaximum": 5}, "4", "5"),
        ({"exclusiveMinimum": 2, "minimum": 7, "type": "number"}, "7", "6.9"),
        ({"exclusiveMaximum": -2, "maximum": -7, "type": "number"}, "-7", "-6.9"),
    ],
)
def test_a_bound_is_not_reached_by_rounding(schema: Any, allowed: str, refused: str) -> None:
    grammar = f"start: %json {json_schema_grammar(schema, WHERE)}"
    assert allows(grammar, allowed)
    assert not allows(grammar, refused)


def test_the_client_s_schema_is_left_as_it_is() -> None:
    schema = {"$ref": "#/x/y", "x": {"y": {"type": "number", "exclusiveMinimum": 3}}, "$id": "https://example.com/a"}
    before = json.dumps(schema)
    json_schema_grammar(schema, WHERE)
    assert json.dumps(schema) == before
