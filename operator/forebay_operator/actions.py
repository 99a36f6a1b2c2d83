"""What reconcile may want done; `controller` does it. Plain data."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object so, by server-side apply of the fields we own."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object, if it is still this very one."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SetDeletionCost:
    """Tell the Deployment's controller which pods go first: the lowest cost."""

    pod: str
    cost: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Write the service's replicas through `/scale`."""

    replicas: int


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Write the service's status."""

    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Tell people about a transition."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = Apply | Delete | SetDeletionCost | Scale | PatchStatus | Event
