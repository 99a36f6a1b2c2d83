"""A folder of this machine as a PersistentVolume, bound to one claim."""

from pathlib import Path
from typing import Any

from hack.kube import apply, get, kubectl, wait_until

CLAIM = "smollm2"
CAPACITY = "200Mi"
BOUND_SECONDS = 60.0


def volume_name(namespace: str) -> str:
    """Volumes have no namespace: one for each namespace that has the claim."""
    return f"{CLAIM}-{namespace}"


def manifests(namespace: str, folder: Path) -> list[dict[str, Any]]:
    """Return the claim and the volume, each naming the other, so that neither binds elsewhere.

    Args:
        namespace: of the claim.
        folder: absolute, on the cluster's only node.
    """
    name = volume_name(namespace)
    access = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "forebay"}},
        "spec": {
            **access,
            "capacity": {"storage": CAPACITY},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": CLAIM},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "forebay"}},
        "spec": {**access, "volumeName": name, "resources": {"requests": {"storage": CAPACITY}}},
    }
    return [claim, volume]


def must_be_replaced(volume: dict[str, Any], folder: Path) -> bool:
    """Whether an existing volume can never serve the claim: its former claim is gone, or it shows another folder."""
    released = volume.get("status", {}).get("phase") in ("Released", "Failed")
    return bool(released or volume["spec"].get("hostPath", {}).get("path") != str(folder))


def provide(namespace: str, folder: Path) -> None:
    """Make volume and claim, or leave them when they are right, and wait until they are bound.

    Raises:
        hack.kube.ToolError: kubectl failed, or they are not bound within a minute.
    """
    name = volume_name(namespace)
    existing = get("persistentvolume", name, namespace)
    if existing is not None and must_be_replaced(existing, folder):
        kubectl("delete", "persistentvolumeclaim", CLAIM, "-n", namespace, "--ignore-not-found")
        kubectl("delete", "persistentvolume", name)
    for manifest in manifests(namespace, folder):
        apply(manifest)
    wait_until(f"claim {CLAIM} in namespace {namespace} to be bound", lambda: _is_bound(namespace), BOUND_SECONDS)


def _is_bound(namespace: str) -> bool:
    claim = get("persistentvolumeclaim", CLAIM, namespace) or {}
    return bool(claim.get("status", {}).get("phase") == "Bound")
