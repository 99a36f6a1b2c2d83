"""Every right that the operator needs: reviewed at start, and compared with the chart's roles by a test."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Right:
    """One rule: what may be done with one kind of object."""

    group: str
    """API group; empty for the core group."""
    resource: str
    """Plural name, with its subresource after a slash."""
    verbs: tuple[str, ...]
    why: str
    cluster_scoped: bool = False
    """The kind has no namespace, so only a ClusterRole can grant it."""
    required: bool = True
    """False: the operator does without, and says so in its log."""


GROUP = "serving.forebay.dev"

RIGHTS: tuple[Right, ...] = (
    Right(GROUP, "inferenceservices", ("list", "watch"), "the services to reconcile"),
    Right(GROUP, "inferenceservices/status", ("patch",), "conditions, plan, load progress"),
    Right(GROUP, "inferenceservices/scale", ("patch",), "queue-depth autoscaling"),
    Right(GROUP, "inferenceservices/finalizers", ("update",), "children block the deletion of their owner"),
    Right(
        GROUP,
        "acceleratorprofiles",
        ("list", "watch"),
        "profiles that override the built-in catalogue",
        cluster_scoped=True,
        required=False,
    ),
    Right(
        "",
        "nodes",
        ("list", "watch"),
        "accelerators that nodes' labels tell of, for services that name none",
        cluster_scoped=True,
        required=False,
    ),
    Right("apps", "deployments", ("get", "list", "watch", "create", "patch"), "one Deployment a service"),
    Right("apps", "replicasets", ("list", "watch"), "which pods are really ours"),
    Right("apps", "controllerrevisions", ("list", "watch", "create", "patch", "delete"), "rendered pod templates"),
    Right("", "services", ("get", "list", "watch", "create", "patch"), "one Service a service"),
    Right("", "serviceaccounts", ("get", "list", "watch", "create", "patch"), "pods without any API rights"),
    Right("", "pods", ("list", "watch", "create", "patch", "delete"), "inspect pods; the cost that picks victims"),
    Right("", "events", ("list", "create"), "why a pod waits; the operator's own events"),
)
"""Namespaced rules may be granted by a Role in each watched namespace or by one ClusterRole."""
