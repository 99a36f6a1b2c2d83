"""The pods: restricted, probed, drained, bound to their hardware."""

from typing import Any

import pytest

from forebay_operator import names
from forebay_operator.pods import GRACE_MARGIN_SECONDS, PRE_STOP_SECONDS
from tests.test_operator.world import World


def template(**spec: Any) -> dict[str, Any]:
    world = World(**spec)
    world.know_the_model()
    found: dict[str, Any] = world.objects["Deployment", "small"]["spec"]["template"]
    return found


def engine(**spec: Any) -> dict[str, Any]:
    (container,) = template(**spec)["spec"]["containers"]
    return dict(container)


def inspect_pod() -> dict[str, Any]:
    world = World()
    world.step()
    (pod,) = world.of("Pod", "inspect")
    return pod


@pytest.mark.parametrize("spec", [template()["spec"], inspect_pod()["spec"]], ids=["engine", "inspect"])
def test_pods_meet_the_restricted_standard_with_a_read_only_root(spec: dict[str, Any]) -> None:
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
    allowed = {"persistentVolumeClaim", "downwardAPI", "emptyDir", "secret"}
    assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])


def test_the_grace_period_covers_pre_stop_drain_and_end() -> None:
    spec = template(drain={"timeout": "2m"})["spec"]
    assert spec["terminationGracePeriodSeconds"] == PRE_STOP_SECONDS + 120 + GRACE_MARGIN_SECONDS
    assert "--drain-timeout=120" in spec["containers"][0]["args"]


def test_probes_are_patient_and_a_hung_engine_is_killed_at_once() -> None:
    container = engine()
    assert "startupProbe" not in container
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"]["path"] == path
        assert container[probe]["httpGet"]["port"] == "ops"
        assert container[probe]["timeoutSeconds"] >= 5
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] == 10


def test_cpu_memory_is_request_and_limit_and_cpu_has_no_limit() -> None:
    resources = engine(podTemplate={"cpu": "500m"})["resources"]
    assert resources == {"requests": {"cpu": "500m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}


def test_the_model_is_mounted_read_only_and_named_by_its_path() -> None:
    spec = template()["spec"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in spec["volumes"]
    assert "--model=/models/small.gguf" in spec["containers"][0]["args"]


def test_built_in_accelerators_bind_pods_to_nodes_that_have_them() -> None:
    spec = template(accelerator={"profile": "l4-24gb"})["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["key"] == "nvidia.com/gpu.product"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "--device=cuda" in spec["containers"][0]["args"]


def test_api_keys_are_a_file_and_only_where_asked_for() -> None:
    assert not [argument for argument in engine()["args"] if argument.startswith("--api-key-file")]
    spec = template(endpoint={"apiKeysSecretRef": {"name": "keys", "key": "list"}})["spec"]
    assert "--api-key-file=/etc/forebay/api-keys/list" in spec["containers"][0]["args"]
    assert {"name": "api-keys", "secret": {"secretName": "keys", "items": [{"key": "list", "path": "list"}]}} in spec[
        "volumes"
    ]


def test_additions_of_the_user_come_in_and_never_replace_our_labels() -> None:
    extra = {
        "labels": {"team": "a", names.SERVICE_LABEL: "stolen"},
        "annotations": {"note": "b"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "env": [{"name": "HOME", "value": "/cache"}, {"name": "X", "value": "1"}],
        "imagePullSecrets": [{"name": "pull"}],
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
    }
    found = template(podTemplate=extra)
    assert found["metadata"]["labels"]["team"] == "a"
    assert found["metadata"]["labels"][names.SERVICE_LABEL] == "small"
    assert found["metadata"]["annotations"]["note"] == "b"
    spec = found["spec"]
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert spec["tolerations"] == [{"key": "k", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("high", "nvidia")
    env = {variable["name"]: variable["value"] for variable in spec["containers"][0]["env"]}
    assert (env["HOME"], env["X"]) == ("/cache", "1")


def test_the_selector_is_small_and_finds_engines_only() -> None:
    world = World()
    world.know_the_model()
    deployment = world.objects["Deployment", "small"]["spec"]
    selector = deployment["selector"]["matchLabels"]
    assert selector == world.objects["Service", "small"]["spec"]["selector"]
    assert selector.items() <= deployment["template"]["metadata"]["labels"].items()
    assert not selector.items() <= inspect_pod()["metadata"]["labels"].items()


def test_every_child_is_owned_and_labelled() -> None:
    world = World()
    world.know_the_model()
    for body in world.objects.values():
        (reference,) = body["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == ("uid-small", True)
        assert body["metadata"]["labels"][names.MANAGED_BY_LABEL] == names.OPERATOR


def test_names_of_inspect_pods_fit_into_a_label() -> None:
    assert len(names.inspect_pod_name("s" * 50, "pvc://c/p", None, 9999)) <= 63
