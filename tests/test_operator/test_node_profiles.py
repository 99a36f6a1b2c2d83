"""A service that names no accelerator gets the one kind that the nodes' labels tell of, or is told why not."""

from typing import Any

import pytest

from forebay_operator import kinds
from forebay_operator.access import missing_rights
from forebay_operator.cache import Cache
from forebay_operator.failures import Failure
from forebay_operator.node_profiles import profile_of_nodes
from tests.test_operator.fake_kube import FakeKube
from tests.test_operator.test_controller import KEY, Bench
from tests.test_operator.world import World

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
MI300X = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
SLICE = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}
PLAIN = {"kubernetes.io/arch": "amd64"}
POOL = {"pool": "big"}
OWN: dict[str, dict[str, Any]] = {"h100-nvl": {"spec": {"nodeSelector": POOL}}, "unbound": {"spec": {}}}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([H100, H100, PLAIN], "h100-80gb"),
        ([MI300X], "mi300x-192gb"),
        ([H100, SLICE], "h100-80gb"),
        ([{**H100, **POOL}], "h100-nvl"),  # an object with a node selector knows better than the catalogue
    ],
)
def test_nodes_of_one_kind_decide(nodes: list[dict[str, str]], expected: str) -> None:
    assert profile_of_nodes(nodes, OWN, {}) == expected


@pytest.mark.parametrize(
    ("nodes", "reason", "words"),
    [
        (None, "NodesNotReadable", ("may not list nodes", "spec.accelerator.profile")),
        ([], "NoAccelerator", ("none of the 0 nodes", "nvidia.com/gpu.product")),
        ([PLAIN], "NoAccelerator", ("none of the 1 nodes", "accelerator.memory")),
        ([SLICE], "UnknownAccelerator", ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "AcceleratorProfile")),
        ([H100, L40S, H100], "AmbiguousAccelerator", ("2 kinds", "h100-80gb (2 nodes)", "l40s-48gb (1 node)")),
        ([H100, {**H100, **POOL}], "AmbiguousAccelerator", ("h100-80gb (1 node)", "h100-nvl (1 node)")),
    ],
)
def test_what_does_not_decide_is_told_with_names(
    nodes: list[dict[str, str]] | None, reason: str, words: tuple[str, ...]
) -> None:
    problem = profile_of_nodes(nodes, OWN, {})
    assert isinstance(problem, Failure)
    assert problem.reason == reason
    for word in words:
        assert word in problem.message


def test_a_node_selector_of_the_pods_narrows_the_choice() -> None:
    nodes = [{**H100, "zone": "a"}, {**L40S, "zone": "b"}]
    assert profile_of_nodes(nodes, {}, {"zone": "b"}) == "l40s-48gb"
    problem = profile_of_nodes(nodes, {}, {"zone": "c"})
    assert isinstance(problem, Failure)
    assert "none of the 0 nodes that match spec.podTemplate.nodeSelector" in problem.message


def test_what_was_chosen_stays_while_nodes_come_and_go() -> None:
    assert profile_of_nodes([H100, L40S], {}, {}, kept="l40s-48gb") == "l40s-48gb"
    assert profile_of_nodes([], {}, {}, kept="l40s-48gb") == "l40s-48gb"
    assert profile_of_nodes(None, {}, {}, kept="l40s-48gb") == "l40s-48gb"
    assert profile_of_nodes([H100], {}, {}, kept="l40s-48gb") == "h100-80gb"


def world(*nodes: dict[str, str]) -> World:
    """A service without accelerator on these nodes."""
    made = World()
    del made.service["spec"]["accelerator"]
    made.nodes = list(nodes)
    return made


def test_the_plan_is_made_for_the_nodes_accelerator_and_bound_to_it() -> None:
    made = world(L40S, PLAIN)
    made.know_the_model()
    assert made.service["status"]["acceleratorProfile"] == "l40s-48gb"
    assert made.condition("SpecValid")["status"] == made.condition("PlanFeasible")["status"] == "True"
    spec = made.objects["Deployment", "small"]["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L40S"]}]
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_a_second_kind_of_node_changes_nothing_that_runs() -> None:
    made = world(L40S)
    made.know_the_model()
    made.nodes = [L40S, H100]
    assert made.look().actions == ()


def test_ambiguous_nodes_are_an_invalid_spec_that_names_the_candidates_and_heals() -> None:
    made = world(L40S, H100)
    made.settle()
    seen = made.condition("SpecValid")
    assert (seen["status"], seen["reason"]) == ("False", "AmbiguousAccelerator")
    assert "h100-80gb (1 node), l40s-48gb (1 node)" in seen["message"]
    assert made.condition("Ready")["reason"] == "AmbiguousAccelerator"
    assert not made.of("Pod", "inspect")
    made.edit(accelerator={"profile": "h100-80gb"})
    made.know_the_model()
    assert made.condition("SpecValid")["status"] == "True"
    assert made.service["status"]["acceleratorProfile"] == "h100-80gb"


def node(name: str, version: int, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "status": {"images": ["many"] * 100}}


def test_only_labels_of_nodes_are_kept_and_only_their_changes_are_news() -> None:
    cache = Cache()
    assert cache.put(kinds.NODE, node("a", 1, x="1"))
    assert not cache.put(kinds.NODE, node("a", 2, x="1"))
    assert cache.put(kinds.NODE, node("a", 3, x="2"))
    (kept,) = cache.all(kinds.NODE)
    assert kept == {"metadata": {"name": "a", "uid": "a", "resourceVersion": "3", "labels": {"x": "2"}}}


async def test_a_nodes_labels_wake_the_services_that_name_no_accelerator() -> None:
    bench = Bench()
    await bench.settle()
    bench.queue = bench.controller._queue
    assert not bench.controller._concerned(kinds.NODE, node("a", 1))
    service = bench.kube.objects[kinds.INFERENCE_SERVICE, "test", "small"]
    spec = {key: value for key, value in service["spec"].items() if key != "accelerator"}
    bench.kube.store(kinds.INFERENCE_SERVICE, {**service, "spec": spec})
    await bench.see()
    assert bench.controller._concerned(kinds.NODE, node("a", 1)) == [KEY]
    await bench.controller.handle(KEY)
    assert bench.condition("SpecValid")["reason"] == "NoAccelerator"
    bench.kube.store(kinds.NODE, {"metadata": {"name": "a", "labels": H100}})
    await bench.settle()
    assert bench.condition("SpecValid")["status"] == "True"
    assert bench.service()["status"]["acceleratorProfile"] == "h100-80gb"


async def test_the_right_to_read_nodes_is_optional() -> None:
    kube = FakeKube()
    kube.forbidden = {("nodes", "list")}
    missing, optional = await missing_rights(kube, ())
    assert missing == []
    assert [right.resource for right in optional] == ["nodes"]
