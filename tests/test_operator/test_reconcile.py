"""The way from a spec to pods, one step at a time, and that it comes to rest."""

import json
from typing import Any

import pytest

from forebay_operator import names
from forebay_operator.actions import Apply, Delete
from tests.test_operator.world import FACTS, World


def known(**spec: Any) -> World:
    world = World(**spec)
    world.know_the_model()
    return world


def template_of(world: World) -> dict[str, Any]:
    template: dict[str, Any] = world.objects["Deployment", "small"]["spec"]["template"]
    return template


def test_a_new_service_first_gets_an_account_and_an_inspect_pod() -> None:
    world = World()
    applied = [a.manifest["kind"] for a in world.step().actions if isinstance(a, Apply)]
    assert applied == ["ServiceAccount", "Pod"]
    assert world.condition("Ready")["reason"] == "Inspecting"
    assert world.condition("PlanFeasible")["status"] == "Unknown"
    assert ("Deployment", "small") not in world.objects


def test_facts_lead_to_a_plan_and_to_every_child() -> None:
    world = known()
    kinds = sorted(kind for kind, _ in world.objects)
    assert kinds == ["ControllerRevision", "Deployment", "Service", "ServiceAccount"]
    assert world.service["status"]["plan"]["tensorParallelSize"] == 1
    assert world.service["status"]["model"]["uri"] == "pvc://models/small.gguf"
    assert world.condition("PlanFeasible")["status"] == "True"


def test_the_inspect_pod_stays_until_its_facts_stand_in_the_status() -> None:
    world = World()
    world.step()
    (pod,) = world.of("Pod", "inspect")
    world.end(pod, 0, FACTS.to_json())
    assert not [a for a in world.look().actions if isinstance(a, Delete)]
    world.step()
    assert [a.name for a in world.look().actions if isinstance(a, Delete)] == [pod["metadata"]["name"]]


def test_reconcile_twice_wants_nothing_the_second_time() -> None:
    world = known(
        scaling={"mode": "QueueDepth", "minReplicas": 1, "maxReplicas": 3, "scaleDownDelay": "1m"},
        endpoint={"apiKeysSecretRef": {"name": "keys", "key": "keys"}},
    )
    world.start_pod("small-1")
    world.settle()
    world.wait(3600)
    assert world.look().actions == ()


def test_a_restarted_operator_with_other_default_images_changes_nothing() -> None:
    world = known()
    world.start_pod("small-1")
    world.settle()
    world.defaults = type(world.defaults)(
        engine_image="engine:2", operator_image="operator:2", image_pull_policy="Always"
    )
    assert world.look().actions == ()


def test_restarted_at_takes_the_new_default_image() -> None:
    world = known()
    world.defaults = type(world.defaults)(
        engine_image="engine:2", operator_image="operator:2", image_pull_policy="IfNotPresent"
    )
    world.service["metadata"]["annotations"][names.RESTART_ANNOTATION] = "now"
    world.settle()
    assert template_of(world)["spec"]["containers"][0]["image"] == "engine:2"


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        ({"replicas": 3}, False),
        ({"suspend": True}, False),
        ({"scaling": {"mode": "Fixed", "minReplicas": 1, "maxReplicas": 2, "scaleDownDelay": "5m"}}, False),
        ({"rollout": {"strategy": "OneAtATime"}}, False),
        ({"context": {"maxModelLen": 1024}}, True),
        ({"kvBudget": {"concurrentSequences": 2}}, True),
        ({"drain": {"timeout": "1m"}}, True),
        ({"engine": {"image": "engine:special"}}, True),
        ({"accelerator": {"profile": "cpu", "memory": "4Gi"}}, True),
        ({"endpoint": {"apiKeysSecretRef": {"name": "keys", "key": "keys"}}}, True),
        ({"podTemplate": {"env": [{"name": "A", "value": "b"}]}}, True),
        ({"quantization": {"weights": "float32"}}, True),
        ({"quantization": {"weights": "auto", "kvCache": "auto"}}, False),  # the defaults, written out
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_which_changes_of_the_spec_roll_the_pods(change: dict[str, Any], rolls: bool) -> None:
    world = known()
    before = template_of(world)
    world.edit(**change)
    world.settle()
    assert (template_of(world) != before) is rolls


def test_going_back_to_an_earlier_spec_applies_its_template_again() -> None:
    world = known()
    before = template_of(world)
    world.edit(drain={"timeout": "1m"})
    world.settle()
    world.edit(drain=None)
    world.settle()
    assert template_of(world) == before


def test_old_revisions_are_cleared_away_but_never_one_that_pods_run() -> None:
    world = known()
    world.start_pod("small-old")
    first = world.service["status"]["revision"]
    for seconds in range(10, 17):
        world.edit(drain={"timeout": f"{seconds}s"})
        world.settle()
    kept = [name for kind, name in world.objects if kind == "ControllerRevision"]
    assert len(kept) == 5
    assert f"small-{first}" in kept


def test_a_plan_that_cannot_fit_is_refused_with_numbers_and_makes_no_pod() -> None:
    world = World(kvBudget={"tokens": 100_000_000})
    world.know_the_model()
    refused = world.condition("PlanFeasible")
    assert refused["status"] == "False"
    assert "B" in refused["message"]
    assert any(character.isdigit() for character in refused["message"])
    assert world.condition("Ready")["reason"] == refused["reason"]
    assert ("Deployment", "small") not in world.objects


def test_a_refused_change_leaves_the_running_pods_alone() -> None:
    world = known()
    world.start_pod("small-1")
    world.settle()
    before = world.objects["Deployment", "small"]
    world.edit(kvBudget={"tokens": 100_000_000})
    world.settle()
    assert world.objects["Deployment", "small"] == before
    assert world.condition("Ready")["status"] == "False"


def test_an_unknown_accelerator_is_named_and_heals_when_its_profile_appears() -> None:
    world = World(accelerator={"profile": "h999"})
    world.settle()
    assert "h999" in world.condition("ReferencesResolved")["message"]
    world.profiles["h999"] = {
        "spec": {
            "memory": "80Gi",
            "bandwidthBytesPerSecond": 3_000_000_000_000,
            "peakFlops": {"bf16": 10**15},
            "native": ["bf16"],
            "nodeSelector": {"gpu": "h999"},
        }
    }
    world.know_the_model()
    assert world.condition("ReferencesResolved")["status"] == "True"
    pod = template_of(world)["spec"]
    assert pod["nodeSelector"] == {"gpu": "h999"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_an_object_of_the_same_name_that_is_not_ours_is_left_alone_and_named() -> None:
    world = World()
    theirs = {"kind": "Service", "metadata": {"name": "small", "labels": {names.COMPONENT_LABEL: "engine"}}}
    world.put(theirs)
    outcome = world.step()
    assert not [action for action in outcome.actions if isinstance(action, Apply)]
    assert world.condition("ReferencesResolved")["reason"] == "NameTaken"


def test_suspend_keeps_replicas_and_runs_nothing() -> None:
    world = known(replicas=3)
    world.edit(suspend=True)
    world.settle()
    assert world.objects["Deployment", "small"]["spec"]["replicas"] == 0
    assert world.service["spec"]["replicas"] == 3
    assert world.condition("Ready")["reason"] == "Suspended"


@pytest.mark.parametrize(
    ("code", "message", "condition", "reason"),
    [
        (11, {"reason": "ModelNotFound", "message": "no file /models/x"}, "ReferencesResolved", "ModelNotFound"),
        (12, {"reason": "ModelNotAllowed", "message": "may not be read"}, "ReferencesResolved", "ModelNotAllowed"),
        (16, {"reason": "CorruptModel", "message": "cut short"}, "ReferencesResolved", "CorruptModel"),
        (2, {"reason": "UnsupportedModel", "message": "architecture foo"}, "PlanFeasible", "UnsupportedModel"),
    ],
)
def test_why_a_model_cannot_be_read_stands_in_a_condition(
    code: int, message: dict[str, str], condition: str, reason: str
) -> None:
    world = World()
    world.step()
    (pod,) = world.of("Pod", "inspect")
    world.end(pod, code, json.dumps(message))
    world.settle()
    seen = world.condition(condition)
    assert (seen["status"], seen["reason"]) == ("False", reason)
    assert message["message"] in seen["message"]


def test_reading_the_model_is_tried_again_ever_more_slowly_until_it_works() -> None:
    world = World()
    world.step()
    for attempt, delay in enumerate((5, 10, 20, 40, 60, 60), start=1):
        (pod,) = world.of("Pod", "inspect")
        assert pod["metadata"]["name"].endswith(f"-{attempt}")
        world.end(pod, 11, '{"message": "not there"}')
        world.settle()
        world.wait(delay - 1)
        assert world.look().actions == ()
        world.wait(1)
        world.settle()
    (pod,) = world.of("Pod", "inspect")
    world.end(pod, 0, FACTS.to_json())
    world.settle()
    assert world.condition("ReferencesResolved")["status"] == "True"


def test_another_model_is_inspected_anew() -> None:
    world = known()
    world.edit(model={"uri": "pvc://models/other.gguf"})
    world.step()
    (pod,) = world.of("Pod", "inspect")
    assert "/models/other.gguf" in pod["spec"]["containers"][0]["args"]


def test_external_and_fixed_never_write_replicas() -> None:
    for mode in ("External", "Fixed"):
        world = known(replicas=5, scaling={"mode": mode, "minReplicas": 1, "maxReplicas": 2, "scaleDownDelay": "1m"})
        world.settle()
        assert world.service["spec"]["replicas"] == 5
        assert world.objects["Deployment", "small"]["spec"]["replicas"] == 5
        assert world.condition("ScalingActive") == {}


def test_two_writers_kserve_3768_an_unrelated_edit_keeps_what_another_autoscaler_set() -> None:
    world = known(scaling={"mode": "External", "minReplicas": 1, "maxReplicas": 9, "scaleDownDelay": "1m"})
    world.edit(replicas=3)
    world.settle()
    world.edit(rollout={"strategy": "Surge"})
    world.settle()
    assert world.objects["Deployment", "small"]["spec"]["replicas"] == 3


def test_somebody_elses_change_of_our_fields_is_put_back() -> None:
    world = known()
    world.objects["Deployment", "small"]["spec"]["replicas"] = 7
    world.settle()
    assert world.objects["Deployment", "small"]["spec"]["replicas"] == 1
