"""Resolved: one InferenceService with everything that its pods are made from, looked up and worked out."""

from dataclasses import dataclass, field
from typing import Any

from forebay_operator.api.common import API_VERSION
from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.planner import Plan


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of an InferenceService."""

    namespace: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """The ownerReference that every child carries."""
        return {
            "apiVersion": API_VERSION,
            "kind": "InferenceService",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What binds a pod to the nodes that have its accelerator, as in a pod's spec."""

    node_selector: dict[str, str] = field(default_factory=dict)
    node_label: tuple[str, tuple[str, ...]] | None = None
    """A label and the values of it that mean this accelerator, for the built-in profiles."""
    tolerations: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a pod template is rendered from."""

    owner: Owner
    spec: InferenceServiceSpec
    accelerator: AcceleratorProfile
    placement: Placement
    plan: Plan
    default_image: str
    image_pull_policy: str
    revision: str
