"""Conditions as Kubernetes writes them: the time of a transition is kept while the status stays the same. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from forebay_operator.api.status import Condition, ConditionType

MAX_MESSAGE_CHARS = 2048

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Statement:
    """A condition before it has a time and a generation."""

    type: ConditionType
    status: Truth
    reason: str
    message: str


def with_times(
    statements: Iterable[Statement], before: Iterable[Mapping[str, Any]], now: datetime, generation: int
) -> list[Condition]:
    """The conditions, in the order of the statements; those that are not stated any more vanish."""
    old = {condition["type"]: condition for condition in before}
    return [
        Condition(
            type=statement.type,
            status=statement.status,
            reason=statement.reason,
            message=statement.message[:MAX_MESSAGE_CHARS],
            last_transition_time=_since(statement, old.get(statement.type), now),
            observed_generation=generation,
        )
        for statement in statements
    ]


def _since(statement: Statement, before: Mapping[str, Any] | None, now: datetime) -> str:
    if before is not None and before["status"] == statement.status:
        return str(before["lastTransitionTime"])
    return time_text(now)


def time_text(time: datetime) -> str:
    """A time as Kubernetes writes it, in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
