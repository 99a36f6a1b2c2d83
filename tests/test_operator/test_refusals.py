"""A plan that the engine refuses is not tried for ever, what serves goes on serving, and a change tries again."""

import copy
import json
from datetime import timedelta
from typing import Any

import pytest

from forebay_operator import names
from forebay_operator.actions import Event, Scale
from tests.test_operator.world import World

NO_ROOM = {"message": "the cache needs more", "needBytes": 9, "haveBytes": 5, "suggestion": "use less"}


@pytest.fixture
def world() -> World:
    return known()


def known(**spec: Any) -> World:
    world = World(**spec)
    world.know_the_model()
    return world


def refuse(world: World, name: str = "small-1", code: int = 14) -> None:
    """The pod's container ends once more; the operator looks at it."""
    world.wait(10)
    end = {"exitCode": code, "message": json.dumps(NO_ROOM), "finishedAt": world.now.isoformat()}
    crash = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": end}}
    if ("Pod", name) in world.objects:
        world.objects["Pod", name]["status"] = {"phase": "Running", "containerStatuses": [crash]}
    else:
        world.start_pod(name, ready=False, containerStatuses=[crash])
    world.settle()


def replicas(world: World) -> int:
    return int(world.objects["Deployment", "small"]["spec"]["replicas"])


def deployed(world: World) -> str:
    labels = world.objects["Deployment", "small"]["spec"]["template"]["metadata"]["labels"]
    return str(labels[names.REVISION_LABEL])


@pytest.mark.parametrize(
    ("codes", "stops"),
    [
        ([14, 14, 14], True),
        ([13, 13, 13], True),
        ([2, 2, 2], True),
        ([14, 14], False),
        ([13, 14, 13, 14, 13, 14], False),
        ([14, 14, 13, 13, 13], True),
        ([14, 137, 14, 1, 14], True),  # other ends in between take nothing back
        ([11] * 5, False),  # the file may come
        ([12] * 5, False),  # the right may be given
        ([16] * 5, False),  # the file may be copied anew
        ([15] * 5, False),
        ([17] * 5, False),
        ([1] * 5, False),
    ],
)
def test_three_identical_refusals_that_no_restart_can_help_stop_the_pods(codes: list[int], stops: bool) -> None:
    world = known()
    for code in codes:
        refuse(world, code=code)
    assert replicas(world) == (0 if stops else 1)
    assert bool(world.condition("Stalled")) is stops
    assert world.service["spec"]["replicas"] == 1


def test_looking_again_at_the_same_end_counts_nothing(world: World) -> None:
    refuse(world)
    refuse(world)
    for _ in range(3):
        world.wait(60)
        assert world.look().actions == ()
    assert world.service["status"]["refusal"]["count"] == 2
    assert replicas(world) == 1


def test_fractions_of_a_second_do_not_count_twice(world: World) -> None:
    world.now += timedelta(milliseconds=500)
    refuse(world)
    world.settle()
    assert world.service["status"]["refusal"]["count"] == 1


def test_each_replica_counts(world: World) -> None:
    world.edit(replicas=3)
    for name in ("small-1", "small-2", "small-3"):
        refuse(world, name)
    assert replicas(world) == 0


def test_the_conditions_say_what_the_engine_said_and_what_to_do(world: World) -> None:
    for _ in range(3):
        refuse(world)
    for kind, status in (("Ready", "False"), ("Stalled", "True"), ("Progressing", "False")):
        seen = world.condition(kind)
        assert (seen["status"], seen["reason"]) == (status, "KVCacheDoesNotFit")
        for words in ("needs 9 bytes, has 5", "use less", "refused 3 times", names.RESTART_ANNOTATION):
            assert words in seen["message"]
    verified = world.condition("PlanVerified")
    assert (verified["status"], verified["reason"]) == ("False", "KVCacheDoesNotFit")


def test_a_bad_configuration_says_nothing_about_the_plans_numbers(world: World) -> None:
    for _ in range(3):
        refuse(world, code=2)
    assert world.condition("Stalled")["reason"] == "InvalidConfiguration"
    assert world.condition("PlanVerified")["status"] == "Unknown"


def stopped(**spec: Any) -> World:
    world = known(**spec)
    for _ in range(3):
        refuse(world)
    del world.objects["Pod", "small-1"]
    world.settle()
    return world


def test_stopped_it_stays_stopped_and_is_told_once_also_after_a_restart_of_the_operator() -> None:
    world = stopped()
    world.history = type(world.history)()
    for _ in range(3):
        world.wait(3600)
        assert world.look().actions == ()
    assert replicas(world) == 0
    assert (
        sum(event.reason == "KVCacheDoesNotFit" and "refused 3 times" in event.message for event in world.happened) == 1
    )


@pytest.mark.parametrize(
    "spec", [{"kvBudget": {"concurrentSequences": 2}}, {"context": {"maxModelLen": 1024}}, {"engine": {"image": "e:2"}}]
)
def test_a_change_of_the_spec_tries_again(spec: dict[str, Any]) -> None:
    world = stopped()
    world.edit(**spec)
    world.settle()
    assert replicas(world) == 1
    assert world.condition("Stalled") == {}
    assert "refusal" not in world.service["status"]


def test_the_restart_annotation_tries_again() -> None:
    world = stopped()
    world.service["metadata"]["annotations"][names.RESTART_ANNOTATION] = "now"
    world.settle()
    assert replicas(world) == 1


@pytest.mark.parametrize(("off", "on"), [({"suspend": True}, {"suspend": False}), ({"replicas": 0}, {"replicas": 1})])
def test_asking_for_nothing_and_then_for_something_tries_again(off: dict[str, Any], on: dict[str, Any]) -> None:
    world = stopped()
    world.edit(**off)
    world.settle()
    assert world.condition("Stalled") == {}
    world.edit(**on)
    world.settle()
    assert replicas(world) == 1


def test_another_number_of_replicas_changes_no_plan_and_tries_nothing() -> None:
    world = stopped()
    world.edit(replicas=5)
    world.settle()
    assert replicas(world) == 0


def test_while_a_pod_of_the_revision_serves_the_others_may_go_on_failing(world: World) -> None:
    world.edit(replicas=2)
    world.start_pod("small-2")
    for _ in range(5):
        refuse(world)
    assert replicas(world) == 2
    assert world.condition("Ready")["status"] == "True"


def test_what_serves_is_not_taken_away_for_a_change_that_does_not_work() -> None:
    world = known(replicas=2)
    world.start_pod("old-1")
    world.start_pod("old-2")
    world.settle()
    old = deployed(world)
    world.edit(kvBudget={"concurrentSequences": 8})
    world.settle()
    refused = deployed(world)
    assert refused != old
    for _ in range(3):
        refuse(world, "new-1")
    assert (deployed(world), replicas(world)) == (old, 2)
    assert world.service["status"]["revision"] == refused
    ready = world.condition("Ready")
    assert ready["status"] == "False"
    assert "2 pods of an older revision still serve" in ready["message"]
    del world.objects["Pod", "new-1"]
    world.settle()
    world.objects["Pod", "old-1"]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    del world.objects["Pod", "old-2"]
    world.settle()
    assert (deployed(world), replicas(world)) == (old, 2)  # that its pods are away for a moment changes nothing
    world.edit(replicas=1)
    world.settle()
    assert (deployed(world), replicas(world)) == (old, 1)


def test_the_revision_to_go_back_to_is_not_cleared_away() -> None:
    world = known()
    world.start_pod("old-1")
    old = deployed(world)
    for seconds in range(10, 16):
        world.edit(drain={"timeout": f"{seconds}s"})
        world.settle()
    for _ in range(3):
        refuse(world, "new-1")
    assert deployed(world) == old
    del world.objects["Pod", "old-1"]
    world.settle()
    assert ("ControllerRevision", f"small-{old}") in world.objects
    assert deployed(world) == old


SCALING = {"mode": "QueueDepth", "minReplicas": 1, "maxReplicas": 4, "scaleDownDelay": "1m"}


def test_nothing_is_scaled_while_nothing_should_run() -> None:
    world = stopped(scaling=SCALING)
    for _ in range(5):
        world.wait(60)
        assert not [action for action in world.step().actions if isinstance(action, Scale | Event)]
    assert world.condition("ScalingActive") == {}


def test_a_status_that_was_lost_only_means_to_try_again() -> None:
    world = stopped()
    before = copy.deepcopy(world.service["status"])
    del world.service["status"]["refusal"]
    world.settle()
    assert replicas(world) == 1
    for _ in range(3):
        refuse(world)
    assert world.service["status"]["refusal"]["count"] == before["refusal"]["count"]
