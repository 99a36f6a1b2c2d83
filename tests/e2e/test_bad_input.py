"""What a user gets wrong is refused with the place, shown with the name, and heals when it is put right."""

import json

import openai
import pytest

from hack.kube import ROOT, ToolError, apply, get, kubectl, list_objects, wait_until
from tests.e2e.cluster import Service, apply_example, example, wait_for_condition


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"kvBudget": {"concurentSequences": 8}}, "spec.kvBudget"),
        ({"context": {"maxModelLen": -1}}, "spec.context.maxModelLen"),
        ({"kvBudget": {"concurrentSequences": 8, "tokens": 4096}}, "spec.kvBudget"),
        ({"parallelism": {"tensor": 3}}, "spec.parallelism.tensor"),
        ({"scaling": {"mode": "QueueDepth", "minReplicas": 4, "maxReplicas": 1}}, "spec.scaling"),
        ({"model": {"uri": "ftp://somewhere/model"}}, "spec.model.uri"),
        ({"replicas": "many"}, "spec.replicas"),
    ],
)
def test_an_impossible_resource_is_refused_with_the_fields_path(
    namespace: str, changes: dict[str, object], path: str
) -> None:
    manifest = example("smollm2-cpu.yaml", **changes)
    manifest["metadata"]["name"] = "impossible"
    with pytest.raises(ToolError) as refused:
        apply(manifest, namespace)
    assert path in str(refused.value)
    assert get("infsvc", "impossible", namespace) is None


def test_a_missing_claim_is_named_and_heals_when_it_appears(namespace: str) -> None:
    apply_example(
        "smollm2-cpu.yaml", namespace, rename="late-claim", model={"uri": "pvc://late/SmolLM2-135M-Instruct.Q4_1.gguf"}
    )
    seen = wait_for_condition("late-claim", "ReferencesResolved", "False", seconds=60)
    assert "late" in seen["message"]
    assert wait_for_condition("late-claim", "Ready", "False", seconds=60)["message"]
    claim = get("pvc", "smollm2", namespace)
    assert claim is not None
    volume = get("pv", claim["spec"]["volumeName"], namespace)
    assert volume is not None
    for twin in late_volume(volume, claim, namespace):
        apply(twin)
    try:
        wait_for_condition("late-claim", "ReferencesResolved", "True", seconds=120)
        wait_for_condition("late-claim", "Ready", "True", seconds=600)
    finally:
        kubectl("delete", "infsvc", "late-claim", "-n", namespace, "--wait=true")
        kubectl("delete", "pvc", "late", "-n", namespace, "--wait=false")
        kubectl("delete", "pv", f"{namespace}-late", "--wait=false")


def late_volume(volume: dict[str, object], claim: dict[str, object], namespace: str) -> list[dict[str, object]]:
    """The same files under a second volume and claim, both called `late`."""
    volume_spec = {**volume["spec"], "claimRef": {"namespace": namespace, "name": "late"}}  # type: ignore[dict-item]
    claim_spec = {**claim["spec"], "volumeName": f"{namespace}-late"}  # type: ignore[dict-item]
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace}-late"},
            "spec": volume_spec,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "late", "namespace": namespace},
            "spec": claim_spec,
        },
    ]


def test_a_missing_secret_is_named_and_heals_and_its_keys_then_guard_the_endpoint(namespace: str) -> None:
    name = "guarded"
    endpoint = {"apiKeysSecretRef": {"name": "late-keys", "key": "keys"}}
    apply_example("smollm2-cpu.yaml", namespace, rename=name, endpoint=endpoint)
    seen = wait_for_condition(name, "ReferencesResolved", "False", seconds=180)
    assert "late-keys" in seen["message"]
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "late-keys"},
        "stringData": {"keys": "right\n"},
    }
    apply(secret, namespace)
    try:
        wait_for_condition(name, "Ready", "True", seconds=300)
        service = Service(namespace, name)
        with pytest.raises(openai.AuthenticationError):
            service.client().models.list()
        assert service.client(api_key="right").models.list().data
    finally:
        kubectl("delete", "infsvc", name, "-n", namespace, "--wait=true")
        kubectl("delete", "secret", "late-keys", "-n", namespace)


def test_a_plan_that_cannot_fit_is_refused_with_its_numbers_and_makes_no_pod(namespace: str) -> None:
    apply_example(
        "smollm2-cpu.yaml",
        namespace,
        rename="too-big",
        kvBudget={"concurrentSequences": 256},
        context={"maxModelLen": 8192},
    )
    refused = wait_for_condition("too-big", "PlanFeasible", "False", seconds=120)
    # 256 sequences of 8192 tokens at 23,040 bytes a token.
    assert "48,318,382,080" in refused["message"] or "48.3" in refused["message"] or "45.0" in refused["message"]
    assert wait_for_condition("too-big", "Ready", "False", seconds=30)
    assert get("deployment", "too-big", namespace) is None
    apply_example("smollm2-cpu.yaml", namespace, rename="too-big", context={"maxModelLen": 2048})
    wait_for_condition("too-big", "PlanFeasible", "True", seconds=120)
    kubectl("delete", "infsvc", "too-big", "-n", namespace)


def test_a_model_that_is_not_there_is_named(namespace: str) -> None:
    apply_example("smollm2-cpu.yaml", namespace, rename="no-model", model={"uri": "pvc://smollm2/no-such-model.gguf"})
    seen = wait_for_condition("no-model", "ReferencesResolved", "False", seconds=120)
    assert "no-such-model.gguf" in seen["message"]
    kubectl("delete", "infsvc", "no-model", "-n", namespace)


def test_deleting_a_service_takes_its_children_along(namespace: str) -> None:
    apply_example("smollm2-cpu.yaml", namespace, rename="short-lived")
    wait_until("the deployment", lambda: get("deployment", "short-lived", namespace), 120)
    assert "finalizers" not in json.dumps(get("infsvc", "short-lived", namespace))
    kubectl("delete", "infsvc", "short-lived", "-n", namespace, "--wait=true", "--timeout=60s")

    def gone() -> bool:
        selector = "app.kubernetes.io/instance=short-lived"
        return not any(list_objects(kind, namespace, selector) for kind in ("deployment", "service", "pod"))

    wait_until("the children to go", gone, 120)


def test_every_example_is_accepted_by_the_api_server() -> None:
    for path in sorted((ROOT / "crds" / "examples").glob("*.yaml")):
        kubectl("apply", "--dry-run=server", "-f", str(path))
