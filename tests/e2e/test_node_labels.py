"""A service that names no accelerator, on a real node whose labels tell of one, of two, or of none."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hack.kube import apply, get, kubectl
from tests.e2e.cluster import example, wait_for_condition

PRODUCT = "nvidia.com/gpu.product"
POOL = "forebay-e2e-pool"


def unnamed(name: str, **changes: Any) -> dict[str, Any]:
    """A service of which nothing runs and that names no accelerator."""
    manifest = example("smollm2-cpu.yaml", replicas=0, **changes)
    del manifest["spec"]["accelerator"]
    manifest["metadata"]["name"] = name
    return manifest


@pytest.fixture
def node() -> Iterator[str]:
    """The node, which loses the labels of these tests afterwards."""
    name = json.loads(kubectl("get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"]
    yield name
    kubectl("label", "node", name, f"{PRODUCT}-", f"{POOL}-")


def test_a_label_decides_and_binds_the_pods_to_it(namespace: str, node: str) -> None:
    apply(unnamed("unnamed"), namespace)
    seen = wait_for_condition("unnamed", "SpecValid", "False", seconds=60)
    assert seen["reason"] == "NoAccelerator"
    assert "spec.accelerator.profile" in seen["message"]
    kubectl("label", "node", node, f"{PRODUCT}=NVIDIA-L40S")
    wait_for_condition("unnamed", "PlanFeasible", "True", seconds=180)
    service, deployment = get("infsvc", "unnamed", namespace), get("deployment", "unnamed", namespace)
    assert service is not None
    assert deployment is not None
    assert service["status"]["acceleratorProfile"] == "l40s-48gb"
    affinity = deployment["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": PRODUCT, "operator": "In", "values": ["NVIDIA-L40S"]}]
    kubectl("delete", "infsvc", "unnamed", "-n", namespace)


def test_two_kinds_are_ambiguous_until_one_is_gone(namespace: str, node: str) -> None:
    kubectl("label", "node", node, f"{POOL}=yes")
    for name in ("kind-a", "kind-b"):
        apply(profile(name))
    try:
        apply(unnamed("between"), namespace)
        seen = wait_for_condition("between", "SpecValid", "False", seconds=60, reason="AmbiguousAccelerator")
        assert "kind-a (1 node), kind-b (1 node)" in seen["message"]
        kubectl("delete", "acceleratorprofile", "kind-b")
        wait_for_condition("between", "SpecValid", "True", seconds=60)
        service = get("infsvc", "between", namespace)
        assert service is not None
        assert service["status"]["acceleratorProfile"] == "kind-a"
    finally:
        kubectl("delete", "infsvc", "between", "-n", namespace)
        kubectl("delete", "acceleratorprofile", "kind-a", "kind-b", "--ignore-not-found")


def profile(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "serving.forebay.dev/v1alpha1",
        "kind": "AcceleratorProfile",
        "metadata": {"name": name},
        "spec": {
            "memory": "40Gi",
            "bandwidthBytesPerSecond": 10**12,
            "peakFlops": {"bf16": 10**14},
            "native": ["bf16"],
            "nodeSelector": {POOL: "yes"},
        },
    }
