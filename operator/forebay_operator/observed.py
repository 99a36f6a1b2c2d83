"""Observed: everything that one reconcile may look at, gathered beforehand. Plain data; no decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forebay_operator.autoscale import History
from forebay_operator.failures import Failure
from forebay_operator.pod_views import PodView
from forebay_operator.resolved import Owner

Body = Mapping[str, Any]
"""An object as the API server gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What an installation brings along."""

    engine_image: str
    operator_image: str
    image_pull_policy: str
    scrape_seconds: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One InferenceService and what belongs to it, at one moment."""

    now: datetime
    service: Body
    defaults: Defaults
    profiles: Mapping[str, Body] = field(default_factory=dict)
    """AcceleratorProfile objects by name."""
    nodes: tuple[Mapping[str, str], ...] | None = None
    """Labels of each node; None: the operator may not look at nodes."""
    deployment: Body | None = None
    endpoint: Body | None = None
    """The Service."""
    account: Body | None = None
    """The ServiceAccount."""
    revisions: tuple[Body, ...] = ()
    """ControllerRevisions of this service."""
    pods: tuple[PodView, ...] = ()
    """Engine pods that descend from our Deployment; nobody else's, whatever their labels."""
    inspect_pods: tuple[Body, ...] = ()
    inspect_views: tuple[PodView, ...] = ()
    """The same pods in the operator's words, in the same order."""
    history: History = field(default_factory=History)
    apply_problem: Failure | None = None
    """Why the API server refused what the last reconcile wanted; None: it did not."""

    @property
    def owner(self) -> Owner:
        """Identity of the service."""
        metadata = self.service["metadata"]
        return Owner(metadata["namespace"], metadata["name"], metadata["uid"])

    @property
    def generation(self) -> int:
        """Generation of the spec that is looked at."""
        return int(self.service["metadata"].get("generation", 0))

    @property
    def status(self) -> Body:
        """The status as it was last written; empty at first."""
        status: Body = self.service.get("status") or {}
        return status


def named_profile(service: Body) -> str | None:
    """The accelerator that a spec names, whether or not the spec is sound; None: it names none."""
    accelerator = service.get("spec", {}).get("accelerator")
    name = accelerator.get("profile") if isinstance(accelerator, Mapping) else None
    return name if isinstance(name, str) else None


def is_owned(body: Body | None, owner: Owner) -> bool:
    """Whether an object is controlled by this very service, not by one of the same name before it."""
    references = (body or {}).get("metadata", {}).get("ownerReferences", ())
    return any(reference.get("uid") == owner.uid and reference.get("controller") for reference in references)
