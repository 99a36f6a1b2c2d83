"""What a pod is doing, from what Kubernetes and the engine say of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from forebay_operator.pod_views import PodView, view
from forebay_operator.scraped import Scraped
from tests.test_operator.world import START

MIB = 2**20


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": START.isoformat(), **metadata},
        "status": status,
    }


def container(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"state": state, "lastState": last or {}}]}


def unscheduled(message: str) -> dict[str, Any]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    return {"phase": "Pending", "conditions": [condition]}


WAITS: list[tuple[dict[str, Any], str, str, str]] = [
    (
        unscheduled('0/1 nodes are available: persistentvolumeclaim "late" not found. not found'),
        "pending",
        "MissingClaim",
        "PersistentVolumeClaim late does not exist",
    ),
    (
        unscheduled('running PreFilter plugin: could not find v1.PersistentVolumeClaim "ns/late"'),
        "pending",
        "MissingClaim",
        "PersistentVolumeClaim late does not exist",
    ),
    (
        unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes"),
        "pending",
        "WaitingForGPU",
        "3 Insufficient nvidia.com/gpu",
    ),
    (unscheduled("0/1 nodes are available: 1 Insufficient memory."), "pending", "Unschedulable", "memory"),
    (
        container({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
        "failed",
        "ImagePullFailed",
        "no such image",
    ),
    (
        container({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "keys" not found'}}),
        "pending",
        "MissingSecret",
        "Secret keys does not exist",
    ),
    (
        container(
            {"waiting": {"reason": "CrashLoopBackOff"}},
            {"terminated": {"exitCode": 14, "message": '{"message": "too much", "needBytes": 9, "haveBytes": 5}'}},
        ),
        "failed",
        "KVCacheDoesNotFit",
        "too much; needs 9 bytes, has 5",
    ),
    (
        container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
        "failed",
        "OOMKilled",
        "more memory than its limit",
    ),
    (
        container({"terminated": {"exitCode": 1, "message": "Traceback\nValueError: no"}}),
        "failed",
        "EngineFailed",
        "ValueError: no",
    ),
    ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU"}, "failed",
     "UnexpectedAdmissionError", "no GPU"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "phase", "reason", "words"), WAITS, ids=[wait[2] for wait in WAITS])
def test_why_a_pod_does_not_serve(status: dict[str, Any], phase: str, reason: str, words: str) -> None:
    seen = view(pod(status), (), None, "nvidia.com/gpu")
    assert seen.failure is not None
    assert (seen.phase, seen.reason) == (phase, reason)
    assert words in seen.failure.message


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, "InvalidConfiguration"),
        (11, "ModelNotFound"),
        (12, "ModelNotAllowed"),
        (13, "WeightsDoNotFit"),
        (14, "KVCacheDoesNotFit"),
        (15, "DeviceLost"),
        (16, "CorruptModel"),
        (17, "EngineHung"),
    ],
)
def test_every_exit_code_of_the_contract_has_its_reason(code: int, reason: str) -> None:
    assert view(pod(container({"terminated": {"exitCode": code}})), (), None).reason == reason


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ("downloading", "downloading"),
        ("loading", "loading"),
        ("compiling", "compiling"),
        ("warming", "warming"),
        ("serving", "warming"),
        ("something new", "pending"),
        (None, "pending"),
    ],
)
def test_a_running_pod_that_is_not_ready_is_as_far_as_it_says(said: str | None, phase: str) -> None:
    scraped = Scraped(phase=said, bytes_loaded=3 * MIB, bytes_total=9 * MIB)
    assert view(pod(container({"running": {}})), (), scraped).phase == phase


def test_load_progress_is_shown_while_loading_only() -> None:
    progress = Scraped(phase="loading", bytes_loaded=3 * MIB, bytes_total=9 * MIB)
    loading = view(pod(container({"running": {}})), (), progress)
    warming = view(pod(container({"running": {}})), (), replace(progress, phase="warming"))
    assert (loading.bytes_loaded, loading.bytes_total) == (3 * MIB, 9 * MIB)
    assert (warming.bytes_loaded, warming.bytes_total) == (None, None)


def test_a_secret_that_cannot_be_mounted_is_found_in_the_events() -> None:
    waiting = container({"waiting": {"reason": "ContainerCreating"}})
    event = {"message": 'MountVolume.SetUp failed for volume "api-keys" : secret "keys" not found'}
    assert view(pod(waiting), (), None).failure is None
    assert view(pod(waiting), (event,), None).reason == "MissingSecret"


def ready(**more: Any) -> PodView:
    status = {**container({"running": {}}), "conditions": [{"type": "Ready", "status": "True"}]}
    return view(pod(status, **more), (), Scraped(phase="serving", running=1, waiting=0))


def test_a_ready_pod_serves_and_its_past_failures_are_forgotten() -> None:
    assert ready().phase == "serving"
    status = {
        **container({"running": {}}, {"terminated": {"exitCode": 17}}),
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    assert view(pod(status), (), None).failure is None


def test_a_pod_that_is_being_deleted_is_not_ready_whatever_its_conditions_say() -> None:
    seen = ready(deletionTimestamp=START.isoformat())
    assert (seen.phase, seen.ready) == ("draining", False)


def test_unschedulable_pods_carry_since_when() -> None:
    seen = view(pod(unscheduled("no")), (), None)
    assert seen.unschedulable_since is not None
    assert START - seen.unschedulable_since == timedelta(0)
