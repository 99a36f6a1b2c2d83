"""The operator on a real API server: its definitions, and what passes between it and real engines."""

import json
from typing import Any

import pytest

from hack.install import OPERATOR_NAMESPACE
from hack.kube import ROOT, ToolError, condition, get, kubectl
from tests.e2e.cluster import Service, apply_example, wait_for_condition

GOOD: dict[str, Any] = {
    "model": {"uri": "pvc://models/llama"},
    "accelerator": {"profile": "cpu", "memory": "8Gi"},
}

REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("ok", {"replica": 2}, "spec.replica", "unknown field"),
    ("ok", {"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    ("ok", {"model": {"uri": "hf://org/model"}}, "spec.model.uri", "must be pvc://CLAIM/PATH"),
    ("ok", {"model": {"uri": "pvc://claim/../x"}}, "spec.model.uri", "must be pvc://CLAIM/PATH"),
    ("ok", {"accelerator": {"profile": "cpu"}}, "spec.accelerator", "must be set with the profile cpu"),
    ("ok", {"accelerator": {"profile": "l4-24gb", "memory": "8Gi"}}, "spec.accelerator.memory", "only with the pro"),
    ("ok", {"parallelism": {"tensor": 3}}, "spec.parallelism.tensor", "power of two"),
    ("ok", {"parallelism": {"tensor": "four"}}, "spec.parallelism.tensor", ""),
    ("ok", {"parallelism": {"pipeline": 17}}, "spec.parallelism.pipeline", "from 1 to 16"),
    ("ok", {"quantization": {"weights": "int8", "floor": "fp8"}}, "spec.quantization.weights", "not be below floor"),
    ("ok", {"quantization": {"weights": "fp7"}}, "spec.quantization.weights", "Unsupported value"),
    ("ok", {"kvBudget": {}}, "spec.kvBudget", "exactly one of"),
    ("ok", {"kvBudget": {"tokens": 4096, "memory": "2Gi"}}, "spec.kvBudget", "exactly one of"),
    ("ok", {"scaling": {"minReplicas": 3, "maxReplicas": 2}}, "spec.scaling.minReplicas", "must not be above"),
    ("ok", {"scaling": {"minReplicas": 0}}, "spec.scaling.minReplicas", "greater than or equal to 1"),
    ("ok", {"drain": {"timeout": "5 minutes"}}, "spec.drain.timeout", "must be a duration such as 90s"),
    ("ok", {"engine": {"extraArgs": ["--port=1"]}}, "spec.engine", "must not set a flag"),
    ("ok", {"podTemplate": {"cpu": 0.5}}, "spec.podTemplate.cpu", "integer,string"),
    ("with.dot", {}, "metadata.name", "at most 50 characters"),
    ("n" * 51, {}, "metadata.name", "at most 50 characters"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def definitions() -> None:
    for name in ("inferenceservices", "acceleratorprofiles"):
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds" / f"{name}.yaml"))
        crd = f"crd/{name}.serving.forebay.dev"
        kubectl("wait", crd, "--for=condition=Established", "--timeout=60s")
        found = json.loads(kubectl("get", crd, "-o", "json"))
        assert not [c for c in found["status"]["conditions"] if c["type"] == "NonStructuralSchema"]


def dry_run(name: str, spec: dict[str, Any]) -> str:
    manifest = {
        "apiVersion": "serving.forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {key: value for key, value in {**GOOD, **spec}.items() if value is not None},
    }
    return kubectl("apply", "--dry-run=server", "-n", "default", "-o", "json", "-f", "-", stdin=json.dumps(manifest))


def test_the_smallest_service_is_accepted_and_gets_one_replica() -> None:
    assert json.loads(dry_run("ok", {}))["spec"]["replicas"] == 1


NUMBERS_AND_WORDS: list[dict[str, Any]] = [
    {"parallelism": {"tensor": 8, "pipeline": 3}},
    {"parallelism": {"tensor": "auto", "pipeline": "auto"}},
    {"podTemplate": {"cpu": 2}},
    {"replicas": 0},
    {"accelerator": None},
    {"quantization": {"weights": "fp16", "floor": "bf16"}},
]


@pytest.mark.parametrize("spec", NUMBERS_AND_WORDS)
def test_numbers_and_words_are_both_taken_where_both_make_sense(spec: dict[str, Any]) -> None:
    assert dry_run("ok", spec)


@pytest.mark.parametrize(
    ("name", "spec", "path", "words"), REFUSED, ids=[f"{number}-{case[2]}" for number, case in enumerate(REFUSED)]
)
def test_what_is_impossible_is_refused_with_field_and_reason(
    name: str, spec: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(ToolError) as refused:
        dry_run(name, spec)
    assert path in str(refused.value)
    assert words in str(refused.value)


def test_the_plan_of_a_real_engine_is_verified_and_shown_to_prometheus(smollm2: Service) -> None:
    verified = wait_for_condition("smollm2", "PlanVerified", "True", seconds=120)
    assert f"{smollm2.status['plan']['kvCacheTokens']:,} KV cache tokens measured" in verified["message"]
    service = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/services/forebay-operator-metrics:8080/proxy/metrics"
    shown = kubectl("get", "--raw", service)
    labels = f'namespace="{smollm2.namespace}",service="smollm2",status="True",type="PlanVerified"'
    assert f"forebay_operator_service_condition{{{labels}}} 1.0" in shown


def test_what_the_engine_refuses_three_times_stops_and_a_change_starts_it_again(namespace: str) -> None:
    apply_example("smollm2-cpu.yaml", namespace, rename="refused", engine={"extraArgs": ["--no-such-flag"]})
    stalled = wait_for_condition("refused", "Stalled", "True", seconds=300, reason="InvalidConfiguration")
    assert "--no-such-flag" in stalled["message"]
    deployment, resource = get("deployment", "refused", namespace), get("infsvc", "refused", namespace)
    assert deployment is not None
    assert resource is not None
    assert (deployment["spec"]["replicas"], resource["spec"]["replicas"]) == (0, 1)
    assert condition(resource, "Ready")["reason"] == "InvalidConfiguration"
    apply_example("smollm2-cpu.yaml", namespace, rename="refused")
    try:
        wait_for_condition("refused", "Ready", "True", seconds=600)
        assert not condition(get("infsvc", "refused", namespace), "Stalled")
    finally:
        kubectl("delete", "infsvc", "refused", "-n", namespace)
