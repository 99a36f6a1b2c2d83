"""Pydantic's JSON Schema to the structural schema that a CustomResourceDefinition may hold.

Kubernetes refuses `$ref`, unions and boolean-free exclusive bounds, and wants every value typed; see
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from typing import Any

from pydantic import BaseModel

_KEPT = frozenset(
    {
        "type",
        "format",
        "description",
        "default",
        "enum",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
    }
)
_DROPPED = frozenset({"title", "$defs", "propertyNames"})


class NotStructuralError(TypeError):
    """A type of ours has no structural schema; says where and why."""


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of one model, with every reference inlined.

    Raises:
        NotStructuralError: a field uses something that Kubernetes refuses, or a string, list or map without a bound.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(document, document.get("$defs", {}), model.__name__)


def _convert(node: dict[str, Any], definitions: dict[str, Any], where: str) -> dict[str, Any]:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _convert({**target, **beside}, definitions, where)
    if "anyOf" in node:
        return _convert(_without_null(node, where), definitions, where)
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and value is None):
            continue
        if key in _KEPT or key.startswith("x-kubernetes-"):
            result[key] = " ".join(value.split()) if key == "description" else value
        elif key == "const":
            result["enum"] = [value]
        elif key == "properties":
            result[key] = {name: _convert(child, definitions, f"{where}.{name}") for name, child in value.items()}
        elif key == "items":
            result[key] = _convert(value, definitions, f"{where}[]")
        elif key == "additionalProperties":
            if isinstance(value, dict):  # False comes from extra="forbid" and may not stand beside properties
                result[key] = _convert(value, definitions, f"{where}{{}}")
        else:
            raise NotStructuralError(f"{where}: the keyword {key!r} has no place in a structural schema")
    if result.get("type") == "integer":
        result["format"] = "int64"
    _require_bounds(result, where)
    return result


def _without_null(node: dict[str, Any], where: str) -> dict[str, Any]:
    """`X | None` is an optional field: the API server drops nulls, so the null needs no place in the schema."""
    variants = [variant for variant in node["anyOf"] if variant.get("type") != "null"]
    if len(variants) != 1:
        raise NotStructuralError(f"{where}: a union of {len(variants)} types")
    return {**variants[0], **{key: value for key, value in node.items() if key != "anyOf"}}


def _require_bounds(node: dict[str, Any], where: str) -> None:
    kind = node.get("type")
    bounds = {"string": "maxLength", "array": "maxItems"}
    if kind == "object" and "additionalProperties" in node and "maxProperties" not in node:
        raise NotStructuralError(f"{where}: a map without maxProperties")
    if kind in bounds and bounds[kind] not in node and "enum" not in node and "format" not in node:
        raise NotStructuralError(f"{where}: a {kind} without {bounds[kind]}")
    if kind is None and not any(
        key in node for key in ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    ):
        raise NotStructuralError(f"{where}: no type")
