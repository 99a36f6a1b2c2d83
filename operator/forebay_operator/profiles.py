"""From the name of an accelerator to its profile and to the nodes that have it: objects first, then the catalogue."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_operator.api.accelerator_profile import AcceleratorProfileSpec
from forebay_operator.api.common import quantity_value
from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.resolved import Placement

_PRODUCT_LABELS = {"nvidia.com": "nvidia.com/gpu.product", "amd.com": "amd.com/gpu.product-name"}
"""The node label that carries the accelerator's name, by the vendor part of its resource name."""


@dataclass(frozen=True, slots=True)
class FoundProfile:
    """A profile, where its pods may run, and what of it belongs to a revision."""

    accelerator: AcceleratorProfile
    placement: Placement
    identity: Any
    """Enters the revision: the whole spec of an object, but of the catalogue's entries only the name, so that
    an operator with a better catalogue does not restart pods."""


def find_profile(name: str, objects: Mapping[str, Mapping[str, Any]]) -> FoundProfile | None:
    """The profile of that name; None when there is neither an object nor a built-in entry.

    Raises:
        pydantic.ValidationError: the object does not have the form of its type.
    """
    body = objects.get(name)
    if body is not None:
        return _from_object(name, body.get("spec", {}))
    entry = accelerators().get(name)
    if entry is None:
        return None
    label = _PRODUCT_LABELS.get(entry.resource_name.partition("/")[0])
    node_label = (label, entry.labels) if label and entry.labels else None
    return FoundProfile(entry, Placement(node_label=node_label, tolerations=_usual_tolerations(entry)), name)


def known_names(objects: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Every name that would be found, in alphabetical order."""
    return sorted({*objects, *accelerators()})


def _usual_tolerations(profile: AcceleratorProfile) -> tuple[dict[str, Any], ...]:
    """GPU nodes usually carry a taint named like their resource."""
    if not profile.resource_name:
        return ()
    return ({"key": profile.resource_name, "operator": "Exists", "effect": "NoSchedule"},)


def _from_object(name: str, body: Mapping[str, Any]) -> FoundProfile:
    spec = AcceleratorProfileSpec.model_validate(body)
    price = spec.price_cents_per_hour
    profile = AcceleratorProfile(
        name=name,
        memory_bytes=int(quantity_value(spec.memory)),
        bandwidth_bytes_per_second=spec.bandwidth_bytes_per_second,
        peak_flops={str(number_format): flops for number_format, flops in spec.peak_flops.items()},
        native=spec.native,
        dequantized=spec.dequantized,
        gpus_per_node=spec.gpus_per_node,
        link_domain=spec.link_domain,
        link_bytes_per_second=spec.link_bytes_per_second,
        price_cents_per_hour=(price.low, price.high) if price else (0, 0),
        device=spec.device,
        resource_name=spec.resource_name,
    )
    placement = Placement(
        node_selector=dict(spec.node_selector or {}),
        tolerations=tuple(t.model_dump(by_alias=True, exclude_none=True) for t in spec.tolerations or ()),
    )
    return FoundProfile(profile, placement, spec.model_dump(mode="json", exclude_defaults=True))
