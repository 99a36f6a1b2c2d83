"""PodView: what one pod of an engine is doing, from its object, its events and what it says of itself. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from forebay_operator import names
from forebay_operator.failures import Failure, LastEnd, missing_reference, terminated, unschedulable, waiting
from forebay_operator.scraped import Scraped

PodPhase = Literal["pending", "downloading", "loading", "compiling", "warming", "serving", "draining", "failed"]

_PHASES: dict[str, PodPhase] = {
    "downloading": "downloading",
    "loading": "loading",
    "compiling": "compiling",
    "warming": "warming",
    "serving": "warming",  # the engine serves, but the kubelet has not yet said that the pod is ready
    "draining": "draining",
}

_WORDS: dict[PodPhase, str] = {
    "pending": "Starting",
    "downloading": "Downloading",
    "loading": "Loading",
    "compiling": "Compiling",
    "warming": "Warming",
    "serving": "Serving",
    "draining": "Draining",
    "failed": "Failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod in the operator's words."""

    name: str
    uid: str
    revision: str
    phase: PodPhase
    created: datetime
    ready: bool
    failure: Failure | None = None
    """Why it waits or has failed."""
    unschedulable_since: datetime | None = None
    ended: datetime | None = None
    """When its container ended, for pods that do not restart."""
    last_end: LastEnd | None = None
    """How its container last ended, if not well; stays while the container runs again."""
    bytes_loaded: int | None = None
    bytes_total: int | None = None
    scraped: Scraped | None = None
    deletion_cost: str | None = None

    @property
    def reason(self) -> str:
        """One CamelCase word: what a service that waits for this pod shows as its reason."""
        return self.failure.reason if self.failure else _WORDS[self.phase]


def view(
    pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]], scraped: Scraped | None, accelerator: str = ""
) -> PodView:
    """The view of one pod; `events` are the warnings about it, `accelerator` the name of its scarce resource."""
    metadata, status = pod["metadata"], pod.get("status", {})
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready = conditions.get("Ready", {}).get("status") == "True" and "deletionTimestamp" not in metadata
    failure, unschedulable_since = _failure(status, container, conditions, events, accelerator)
    phase = _phase(metadata, status, container, ready, failure, scraped)
    ended = container.get("state", {}).get("terminated", {}).get("finishedAt")
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=metadata.get("labels", {}).get(names.REVISION_LABEL, ""),
        phase=phase,
        created=parse_time(metadata["creationTimestamp"]),
        ready=ready,
        failure=None if ready else failure,
        unschedulable_since=unschedulable_since,
        ended=parse_time(ended) if ended else None,
        last_end=_last_end(container),
        bytes_loaded=scraped.bytes_loaded if scraped and phase == "loading" else None,
        bytes_total=scraped.bytes_total if scraped and phase == "loading" else None,
        scraped=scraped,
        deletion_cost=metadata.get("annotations", {}).get(names.DELETION_COST_ANNOTATION),
    )


def _failure(
    status: Mapping[str, Any],
    container: Mapping[str, Any],
    conditions: Mapping[str, Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    accelerator: str,
) -> tuple[Failure | None, datetime | None]:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        since = scheduled.get("lastTransitionTime")
        reason = unschedulable(scheduled.get("message", ""), accelerator)
        return reason, parse_time(since) if since else None
    state = container.get("state", {})
    if "terminated" in state:
        return terminated(state["terminated"]), None
    if "waiting" in state:
        held = state["waiting"]
        if found := waiting(held.get("reason", ""), held.get("message", "")):
            return found, None
        for event in events:
            if found := missing_reference(event.get("message", "")):
                return found, None
    # A container that runs again after a failure: the failure stays the story until the pod is ready.
    last = container.get("lastState", {}).get("terminated")
    if last and (failure := terminated(last)):
        return failure, None
    if status.get("phase") == "Failed":
        return Failure(status.get("reason", "Failed"), status.get("message", "the pod failed")), None
    return None, None


def _phase(
    metadata: Mapping[str, Any],
    status: Mapping[str, Any],
    container: Mapping[str, Any],
    ready: bool,
    failure: Failure | None,
    scraped: Scraped | None,
) -> PodPhase:
    if "deletionTimestamp" in metadata:
        return "draining"
    if ready:
        return "serving"
    if status.get("phase") == "Failed" or (failure and "running" not in container.get("state", {}) and container):
        return "failed" if failure and failure.reason not in _WAITING_REASONS else "pending"
    if scraped and scraped.phase in _PHASES and "running" in container.get("state", {}):
        return _PHASES[scraped.phase]
    return "pending"


def _last_end(container: Mapping[str, Any]) -> LastEnd | None:
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    failure = terminated(ended) if ended else None
    if failure is None or not ended.get("finishedAt"):
        return None
    return LastEnd(int(ended["exitCode"]), parse_time(ended["finishedAt"]).replace(microsecond=0), failure.message)


_WAITING_REASONS = frozenset({"MissingClaim", "MissingSecret", "WaitingForGPU", "Unschedulable"})
"""Reasons that end by themselves when something appears: the pod has not failed."""


def parse_time(text: str) -> datetime:
    """A time as Kubernetes writes it, with or without a fraction of a second."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
