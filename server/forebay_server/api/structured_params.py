"""From the fields of a body to what its text must be. Pure."""

import json
from collections.abc import Iterator

from forebay_server.api.openai_types import GenerationBody, ResponseFormat, StructuredOutputs
from forebay_server.errors import InvalidRequestError
from forebay_server.structured.constraints import ANY_OBJECT, Constraint, ConstraintKind


def constraint_of(body: GenerationBody) -> Constraint | None:
    """What the text must be; None: anything.

    Raises:
        InvalidRequestError: it is said twice, or not understood.
    """
    found = list(_constraints(body))
    if len(found) > 1:
        fields = " and ".join(constraint.where for constraint in found)
        raise InvalidRequestError(f"{fields} both say what the text must be; leave one out", param=found[1].where)
    return found[0] if found else None


def _constraints(body: GenerationBody) -> Iterator[Constraint]:
    if body.response_format is not None:
        yield from _of_response_format(body.response_format)
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs)
    yield from _of_values(
        ("json", body.guided_json, "guided_json"),
        ("regex", body.guided_regex, "guided_regex"),
        ("choice", body.guided_choice, "guided_choice"),
        ("grammar", body.guided_grammar, "guided_grammar"),
        ("json", ANY_OBJECT if body.guided_json_object else None, "guided_json_object"),
        ("json", body.json_schema, "json_schema"),
        ("regex", body.regex, "regex"),
        ("grammar", body.ebnf, "ebnf"),
    )


def _of_response_format(wanted: ResponseFormat) -> Iterator[Constraint]:
    if wanted.type == "json_object":
        if wanted.schema_of_object is None:
            yield Constraint("json", ANY_OBJECT, "response_format")
        else:
            yield Constraint("json", wanted.schema_of_object, "response_format.schema")
    elif wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise InvalidRequestError(
                "response_format of type json_schema needs json_schema", param="response_format.json_schema"
            )
        yield Constraint("json", wanted.json_schema.json_schema, "response_format.json_schema.schema")


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[Constraint]:
    for name, field in wanted.not_offered.items():
        if not field.allows((wanted.model_extra or {}).get(name)):
            raise InvalidRequestError(
                f"structured_outputs.{name} is not offered by this server; {field.instead}",
                param=f"structured_outputs.{name}",
                code="unsupported_parameter",
            )
    where = "structured_outputs"
    found = list(
        _of_values(
            ("json", wanted.schema_or_text, f"{where}.json"),
            ("regex", wanted.regex, f"{where}.regex"),
            ("choice", wanted.choice, f"{where}.choice"),
            ("grammar", wanted.grammar, f"{where}.grammar"),
            ("json", ANY_OBJECT if wanted.json_object else None, f"{where}.json_object"),
        )
    )
    if not found:
        raise InvalidRequestError(
            "structured_outputs needs one of json, regex, choice, grammar and json_object", param=where
        )
    yield from found


def _of_values(*fields: tuple[ConstraintKind, object, str]) -> Iterator[Constraint]:
    for kind, value, where in fields:
        if value is not None:
            yield Constraint(kind, _schema(value, where) if kind == "json" else value, where)


def _schema(value: object, where: str) -> object:
    """A schema may come as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        schema: object = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is no valid JSON: {error}", param=where) from error
    return schema
