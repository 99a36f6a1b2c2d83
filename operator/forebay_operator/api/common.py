"""What the custom resources share: the base model, bounded scalar types and validation rules."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

GROUP = "serving.forebay.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_QUANTITY_PATTERN = r"^[1-9][0-9]{0,14}(\.[0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
_DURATION_PATTERN = r"^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$"
_QUANTITY_FACTORS = {
    "m": 1e-3,
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


class ApiModel(BaseModel):
    """Base of everything that a user or the operator writes: camelCase, nothing unknown, never changed."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


def rule(expression: str, message: str, **more: str) -> dict[str, Any]:
    """The schema keyword for one CEL rule; `more` may name a `fieldPath`."""
    return {"x-kubernetes-validations": [{"rule": expression, "message": message, **more}]}


def rules(*each: dict[str, Any]) -> dict[str, Any]:
    """Several results of `rule` as one schema keyword."""
    return {"x-kubernetes-validations": [item for one in each for item in one["x-kubernetes-validations"]]}


def cel_text(text: str) -> str:
    """A string literal of CEL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    StringConstraints(pattern=_QUANTITY_PATTERN, max_length=20),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": _QUANTITY_PATTERN, "maxLength": 20}),
]
"""A Kubernetes quantity above zero: `8Gi`, `500m`, `2`."""

Duration = Annotated[
    str,
    StringConstraints(pattern=_DURATION_PATTERN, min_length=2, max_length=18),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 2,
            "maxLength": 18,
            **rule(f"self.matches({cel_text(_DURATION_PATTERN)})", "must be a duration such as 90s, 5m or 1h30m"),
        }
    ),
]
"""Hours, minutes and seconds: `5m`, `1h30m`, `90s`."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)]
"""The name of an object in the same namespace."""

ShortText = Annotated[str, StringConstraints(max_length=256)]
Message = Annotated[str, StringConstraints(max_length=4096)]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
Annotations = Annotated[dict[LabelKey, Message], Field(max_length=32)]


class Toleration(ApiModel):
    """A taint that the pod may ignore, as in a pod's spec."""

    key: Annotated[str, StringConstraints(max_length=317)] | None = None
    """Taint key; empty with operator Exists tolerates every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """How the value is compared."""
    value: LabelValue | None = None
    """Taint value for Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect to tolerate; absent: all."""
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None
    """How long NoExecute is tolerated; absent: for ever."""


def quantity_value(quantity: str) -> float:
    """The number that a quantity stands for: bytes for memory, cores for CPU.

    Raises:
        ValueError: it is no quantity above zero.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", quantity)
    if match is None or match.group(2) not in _QUANTITY_FACTORS:
        raise ValueError(f"{quantity!r} is not a quantity; examples: 8Gi, 500m, 2")
    return float(match.group(1)) * _QUANTITY_FACTORS[match.group(2)]


def duration_seconds(duration: str) -> int:
    """Seconds in a duration such as `1h30m`.

    Raises:
        ValueError: it is no duration.
    """
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", duration)
    if match is None or not duration:
        raise ValueError(f"{duration!r} is not a duration; examples: 90s, 5m, 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
