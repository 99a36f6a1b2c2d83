"""The status says what is, about the spec that was looked at."""

from typing import Any

import pytest

from forebay_operator.actions import Event, PatchStatus
from forebay_operator.failures import Failure
from forebay_operator.scraped import Scraped
from tests.test_operator.world import World

MIB = 2**20


@pytest.fixture
def world() -> World:
    world = World()
    world.know_the_model()
    return world


def test_ready_only_when_a_pod_of_the_observed_revision_serves_dynamo_3567(world: World) -> None:
    world.start_pod("small-1")
    world.settle()
    assert world.condition("Ready")["status"] == "True"
    world.edit(drain={"timeout": "1m"})
    world.settle()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("False", "CreatingPods", 2)
    world.start_pod("small-2", ready=False)
    world.settle()
    assert world.service["status"]["updatedReplicas"] == 1
    assert "older revision still serve" in world.condition("Ready")["message"]
    world.start_pod("small-2")
    world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Progressing")["reason"] == "ReplacingPods"


def test_not_ready_while_crash_looping_kserve_1859(world: World) -> None:
    world.start_pod("small-1")
    world.settle()
    crash = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 16, "message": '{"message": "tensor blk.0 is cut short"}'}},
    }
    world.start_pod("small-1", ready=False, containerStatuses=[crash])
    world.settle()
    for kind, status in (("Ready", "False"), ("ReferencesResolved", "False"), ("Degraded", "True")):
        seen = world.condition(kind)
        assert (seen["status"], seen["reason"]) == (status, "CorruptModel")
        assert "blk.0" in seen["message"]
    assert [event.reason for event in world.happened][-3:] == ["CorruptModel", "CorruptModel", "NotReady"]


def test_load_progress_stands_in_status_until_all_pods_serve(world: World) -> None:
    world.scraped["small-1"] = Scraped(phase="loading", bytes_loaded=12 * MIB, bytes_total=48 * MIB)
    world.start_pod("small-1", ready=False)
    world.settle()
    (load,) = world.service["status"]["load"]
    assert load == {"pod": "small-1", "phase": "loading", "bytesLoaded": 12 * MIB, "bytesTotal": 48 * MIB}
    assert world.condition("Ready")["message"] == "small-1: 12 of 48 MiB loaded"
    world.start_pod("small-1")
    world.settle()
    assert "load" not in world.service["status"]


def test_at_zero_a_service_is_ready_and_says_so(world: World) -> None:
    world.start_pod("small-1")
    world.edit(replicas=0)
    world.settle()
    assert world.condition("Ready")["reason"] == "ScalingToZero"
    del world.objects["Pod", "small-1"]
    world.settle()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")


def test_the_time_of_a_transition_is_kept_while_the_status_is(world: World) -> None:
    before = world.condition("Ready")["lastTransitionTime"]
    world.wait(60)
    world.start_pod("small-1", ready=False)
    world.settle()
    assert world.condition("Ready")["lastTransitionTime"] == before
    world.start_pod("small-1")
    world.settle()
    assert world.condition("Ready")["lastTransitionTime"] > before


def test_what_the_api_server_refused_is_told(world: World) -> None:
    world.problem = Failure("ApplyFailed", "exceeded quota: gpus")
    world.settle()
    assert "quota" in world.condition("Degraded")["message"]
    world.problem = None
    world.settle()
    assert world.condition("Degraded") == {}


def test_events_come_on_transitions_only(world: World) -> None:
    world.start_pod("small-1")
    world.settle()
    assert [event.reason for event in world.happened] == ["Ready"]
    for _ in range(3):
        world.wait(600)
        assert not any(isinstance(action, Event) for action in world.step().actions)


def test_scale_without_a_selector_llmkube_1881(world: World) -> None:
    assert world.service["status"]["selector"] == "app.kubernetes.io/component=engine,serving.forebay.dev/service=small"


def test_an_invalid_spec_from_an_older_definition_is_said_and_harms_nothing(world: World) -> None:
    world.start_pod("small-1")
    world.settle()
    before = world.objects["Deployment", "small"]
    world.edit(scaling={"mode": "QueueDepth", "minReplicas": 9, "maxReplicas": 1})
    world.settle()
    invalid = world.condition("SpecValid")
    assert (invalid["status"], invalid["reason"]) == ("False", "InvalidSpec")
    assert "spec.scaling" in invalid["message"]
    assert world.objects["Deployment", "small"] == before


SCALING = {
    "mode": "QueueDepth",
    "minReplicas": 1,
    "maxReplicas": 4,
    "target": {"waitingPerReplica": 2},
    "scaleDownDelay": "1m",
}


def scaled_world(**spec: Any) -> World:
    world = World(scaling=SCALING, **spec)
    world.know_the_model()
    return world


def test_the_scaling_decision_and_its_inputs_stand_in_status() -> None:
    world = scaled_world()
    world.scraped["small-1"] = Scraped(phase="serving", waiting=9, running=4)
    world.start_pod("small-1")
    world.step()
    record = world.service["status"]["autoscaling"]
    assert (record["desiredReplicas"], record["reason"]) == (2, "QueueAboveTarget")
    assert record["inputs"]["waiting"] == 9
    assert world.service["spec"]["replicas"] == 2
    assert world.happened[-1].reason == "Scaled"


def test_a_load_that_changes_nothing_is_not_written_at_each_look() -> None:
    world = scaled_world()
    world.start_pod("small-1")
    world.scraped["small-1"] = Scraped(phase="serving", waiting=0, running=1)
    world.settle()
    world.scraped["small-1"] = Scraped(phase="serving", waiting=1, running=3)
    assert not [action for action in world.step().actions if isinstance(action, PatchStatus)]


def test_report_6_the_emptiest_pod_is_marked_before_replicas_are_lowered() -> None:
    world = scaled_world(replicas=2)
    for name, running in (("small-1", 1), ("small-2", 0)):
        world.scraped[name] = Scraped(phase="serving", waiting=0, running=running)
        world.start_pod(name)
    for _ in range(12):
        world.step()
        world.wait(10)
    cost = "controller.kubernetes.io/pod-deletion-cost"
    assert world.objects["Pod", "small-2"]["metadata"]["annotations"][cost] == "-1"
    assert cost not in world.objects["Pod", "small-1"]["metadata"]["annotations"]
    assert world.service["spec"]["replicas"] == 1


def test_blind_scaling_is_a_condition() -> None:
    world = scaled_world()
    world.start_pod("small-1")
    world.settle()
    active = world.condition("ScalingActive")
    assert (active["status"], active["reason"]) == ("False", "MetricsUnavailable")


def test_the_same_trouble_is_told_once_though_the_status_changes(world: World) -> None:
    world.problem = Failure("ApplyFailed", "exceeded quota: gpus")
    world.settle()
    told = len(world.happened)
    world.start_pod("small-1", ready=False)
    assert any(isinstance(action, PatchStatus) for action in world.step().actions)
    assert len(world.happened) == told
