"""The accelerator of a service that names none, from the labels of the cluster's nodes. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from forebay_operator.catalogue.accelerators import PRODUCT_LABELS, recognise
from forebay_operator.failures import Failure

_HOW = "set spec.accelerator.profile"
_MAX_NAMES = 8


def profile_of_nodes(
    nodes: Sequence[Mapping[str, str]] | None,
    objects: Mapping[str, Mapping[str, Any]],
    selector: Mapping[str, str],
    kept: str | None = None,
) -> str | Failure:
    """The name of the one profile that the nodes mean, or why there is no such one.

    A node means the AcceleratorProfile objects whose node selector it matches; where there are none, what the built-in
    catalogue knows its product label as. Nodes that mean nothing do not count.

    Args:
        nodes: labels of each; None: they may not be looked at.
        objects: AcceleratorProfile objects by name.
        selector: of the pods; other nodes do not count.
        kept: what it was before. It stays while any node means it, and while none means anything: nodes come and go.
    """
    if kept and nodes is None:
        return kept
    if nodes is None:
        return Failure("NodesNotReadable", f"the operator may not list nodes, so it cannot tell an accelerator; {_HOW}")
    eligible = [labels for labels in nodes if selector.items() <= labels.items()]
    found = Counter(name for labels in eligible for name in _meant(labels, objects))
    if kept and (kept in found or not found):
        return kept
    if len(found) == 1:
        return next(iter(found))
    if found:
        counted = [f"{name} ({count} node{'s' if count > 1 else ''})" for name, count in sorted(found.items())]
        return Failure(
            "AmbiguousAccelerator",
            f"the nodes have accelerators of {len(found)} kinds: {', '.join(counted[:_MAX_NAMES])}; {_HOW} to one of "
            "them, or spec.podTemplate.nodeSelector to nodes of one kind",
        )
    products = sorted({labels[key] for labels in eligible for key in PRODUCT_LABELS if key in labels})
    if products:
        return Failure(
            "UnknownAccelerator",
            f"the nodes' labels name only accelerators that are not known whole: {', '.join(products[:_MAX_NAMES])}; "
            f"{_HOW}, to an AcceleratorProfile of your own if need be",
        )
    which = " that match spec.podTemplate.nodeSelector" if selector else ""
    return Failure(
        "NoAccelerator",
        f"none of the {len(eligible)} nodes{which} has a label that names its accelerator ({', '.join(PRODUCT_LABELS)})"
        f"; {_HOW}, for instance to cpu with accelerator.memory",
    )


def _meant(labels: Mapping[str, str], objects: Mapping[str, Mapping[str, Any]]) -> set[str]:
    selected = set()
    for name, body in objects.items():
        wanted = (body.get("spec") or {}).get("nodeSelector") or {}
        if wanted and wanted.items() <= labels.items():
            selected.add(name)
    if selected:
        return selected
    known = recognise(labels)
    return {known.name} if known else set()
