"""The events that a change of status is worth: on transitions only, never on every look. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from forebay_operator.actions import Action, Event

_BAD_WHEN_FALSE = ("SpecValid", "ReferencesResolved", "PlanFeasible", "PlanVerified", "ScalingActive")
_BAD_WHEN_TRUE = ("Degraded", "Stalled")
MAX_MESSAGE_CHARS = 1024
"""The API server refuses longer messages of events."""


def transition_events(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Action]:
    """What people should hear about the step from one status to the next."""
    old, new = _conditions(before.get("conditions", ())), _conditions(after["conditions"])
    events: list[Action] = []
    for kind in (*_BAD_WHEN_FALSE, *_BAD_WHEN_TRUE):
        bad = "True" if kind in _BAD_WHEN_TRUE else "False"
        condition, previous = new.get(kind), old.get(kind)
        if condition and condition["status"] == bad and not _same(condition, previous):
            events.append(Event("Warning", condition["reason"], condition["message"][:MAX_MESSAGE_CHARS]))
    ready, was = new["Ready"], old.get("Ready")
    if ready["status"] == "True" and not (was and was["status"] == "True"):
        events.append(Event("Normal", "Ready", ready["message"]))
    elif ready["status"] != "True" and was and was["status"] == "True":
        events.append(Event("Warning", "NotReady", f"{ready['reason']}: {ready['message']}"[:MAX_MESSAGE_CHARS]))
    scaling, scaled = after.get("autoscaling"), before.get("autoscaling") or {}
    if scaling and scaling.get("lastScaleTime") and scaling["lastScaleTime"] != scaled.get("lastScaleTime"):
        change = f"replicas {scaling['inputs']['currentReplicas']} -> {scaling['desiredReplicas']}"
        events.append(Event("Normal", "Scaled", f"{change}: {scaling['message']}"[:MAX_MESSAGE_CHARS]))
    return events


def _conditions(conditions: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {condition["type"]: condition for condition in conditions}


def _same(condition: Mapping[str, Any], previous: Mapping[str, Any] | None) -> bool:
    return previous is not None and all(condition[key] == previous[key] for key in ("status", "reason"))
