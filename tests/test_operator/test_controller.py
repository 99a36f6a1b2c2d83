"""The controller does what reconcile wants, keeps to its objects, and deals with an API server that says no."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from forebay_operator import kinds, names
from forebay_operator.access import missing_rights
from forebay_operator.cache import Cache
from forebay_operator.controller import Controller
from forebay_operator.errors import ApiError, GoneError, RefusedError
from forebay_operator.observe import Observer
from forebay_operator.observed import Defaults
from forebay_operator.resync import Resync
from forebay_operator.scrape import Scraper
from forebay_operator.work_queue import WorkQueue
from tests.test_operator.fake_kube import FakeKube
from tests.test_operator.world import FACTS, SPEC

KEY = ("test", "small")


class Bench:
    """A controller with everything around it, and one service."""

    def __init__(self) -> None:
        self.kube, self.cache, self.queue = FakeKube(), Cache(), WorkQueue()
        self.scraper = Scraper(10)
        defaults = Defaults(engine_image="engine:1", operator_image="operator:1", image_pull_policy="IfNotPresent")
        observer = Observer(self.cache, self.kube, self.scraper, defaults)
        self.controller = Controller(self.kube, self.cache, self.queue, observer)
        self.resync = Resync(self.kube, self.cache, self.queue, kinds.WATCHED, ("test",), 300)
        metadata = {"namespace": "test", "name": "small", "generation": 1}
        self.kube.store(kinds.INFERENCE_SERVICE, {"metadata": metadata, "spec": SPEC})

    async def see(self) -> None:
        """All watches bring their news."""
        await self.resync.once()

    async def settle(self) -> None:
        for _ in range(6):
            await self.see()
            before = list(self.kube.writes)
            await self.controller.handle(KEY)
            if self.kube.writes == before:
                return
        raise AssertionError(f"does not come to rest: {self.kube.writes}")

    async def inspected(self) -> None:
        await self.settle()
        (pod,) = [body for (kind, _, _), body in self.kube.objects.items() if kind == kinds.POD]
        state = {"terminated": {"exitCode": 0, "message": FACTS.to_json()}}
        self.kube.store(kinds.POD, {**pod, "status": {"containerStatuses": [{"state": state}]}})
        await self.settle()

    def service(self) -> dict[str, Any]:
        return self.kube.objects[kinds.INFERENCE_SERVICE, "test", "small"]

    def condition(self, kind: str) -> dict[str, Any]:
        found = [c for c in self.service()["status"]["conditions"] if c["type"] == kind]
        return dict(found[0]) if found else {}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.scraper.close()


async def test_from_a_service_to_its_children_and_then_to_rest(bench: Bench) -> None:
    await bench.inspected()
    kinds_there = sorted(kind.kind for kind, _, _ in bench.kube.objects)
    assert kinds_there == ["ControllerRevision", "Deployment", "InferenceService", "Service", "ServiceAccount"]
    writes = len(bench.kube.writes)
    await bench.settle()
    assert len(bench.kube.writes) == writes


async def test_pods_with_our_labels_but_another_owner_are_ignored_aibrix_463(bench: Bench) -> None:
    await bench.inspected()
    foreign = {
        "metadata": {"name": "foreign", "namespace": "test", "labels": names.labels("small")},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    bench.kube.store(kinds.POD, foreign)
    await bench.settle()
    assert bench.service()["status"]["replicas"] == 0
    assert (kinds.POD, "test", "foreign") in bench.kube.objects


async def test_pods_of_our_replica_set_count(bench: Bench) -> None:
    await bench.inspected()
    deployment = bench.kube.objects[kinds.DEPLOYMENT, "test", "small"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    def owned(name: str, owner: dict[str, Any]) -> dict[str, Any]:
        references = [{"uid": owner["metadata"]["uid"], "controller": True}]
        return {"name": name, "namespace": "test", "labels": labels, "ownerReferences": references}

    replica_set = bench.kube.store(kinds.REPLICA_SET, {"metadata": owned("small-1", deployment)})
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    bench.kube.store(kinds.POD, {"metadata": owned("small-1-a", replica_set), "status": ready})
    await bench.settle()
    assert bench.condition("Ready")["status"] == "True"
    assert ("Normal", "Ready") in bench.kube.events


async def test_a_service_of_the_same_name_that_carries_no_label_of_ours_is_not_taken_over(bench: Bench) -> None:
    bench.kube.store(kinds.SERVICE, {"kind": "Service", "metadata": {"name": "small", "namespace": "test"}})
    bench.cache = Cache()
    listed = [kind for kind in kinds.WATCHED if kind != kinds.SERVICE]  # its labels keep it out of our listings
    await Resync(bench.kube, bench.controller._cache, bench.queue, listed, ("test",), 300).once()
    await bench.controller.handle(KEY)
    assert bench.condition("ReferencesResolved")["reason"] == "NameTaken"
    assert bench.kube.writes == ["status inferenceservices/small"]


async def test_a_refusal_of_the_api_server_becomes_a_condition_and_heals(bench: Bench) -> None:
    await bench.settle()
    bench.kube.fail["apply deployments"] = RefusedError("403: exceeded quota: gpus", 403)
    (pod,) = [body for (kind, _, _), body in bench.kube.objects.items() if kind == kinds.POD]
    state = {"terminated": {"exitCode": 0, "message": FACTS.to_json()}}
    bench.kube.store(kinds.POD, {**pod, "status": {"containerStatuses": [{"state": state}]}})
    await bench.see()
    assert await bench.controller.handle(KEY) == 0.0
    with pytest.raises(RefusedError, match="quota"):  # so that the queue backs off
        await bench.controller.handle(KEY)
    assert "quota" in bench.condition("Degraded")["message"]
    bench.kube.fail.clear()
    await bench.controller.handle(KEY)
    await bench.settle()
    assert bench.condition("Degraded") == {}
    assert (kinds.DEPLOYMENT, "test", "small") in bench.kube.objects


async def test_no_answer_is_an_error_for_the_queue(bench: Bench) -> None:
    await bench.see()
    bench.kube.fail["apply pods"] = ApiError("no answer within 15 s")
    with pytest.raises(ApiError, match="no answer"):
        await bench.controller.handle(KEY)


async def test_a_service_that_went_away_is_forgotten(bench: Bench) -> None:
    await bench.see()
    bench.kube.fail["status inferenceservices"] = GoneError("404", 404)
    await bench.controller.handle(KEY)
    bench.controller.saw(kinds.INFERENCE_SERVICE, bench.service(), deleted=True)
    assert await bench.controller.handle(KEY) is None


async def test_the_controllers_own_writes_are_no_news(bench: Bench) -> None:
    await bench.settle()
    queue = WorkQueue()
    bench.controller._queue = queue
    for (kind, _, _), body in bench.kube.objects.items():
        bench.controller.saw(kind, body, deleted=False)
    assert queue.num_waiting == 0


async def test_a_profile_wakes_the_services_that_name_it(bench: Bench) -> None:
    await bench.see()
    queue = WorkQueue()
    bench.controller._queue = queue
    bench.controller.saw(kinds.ACCELERATOR_PROFILE, {"metadata": {"name": "other"}, "spec": {}}, deleted=False)
    assert queue.num_waiting == 0
    bench.controller.saw(kinds.ACCELERATOR_PROFILE, {"metadata": {"name": "cpu"}, "spec": {}}, deleted=False)
    assert queue.num_waiting == 1


async def test_missing_rights_are_listed_by_what_they_are_for() -> None:
    kube = FakeKube()
    assert await missing_rights(kube, ()) == ([], [])
    kube.forbidden = {("deployments", "patch"), ("acceleratorprofiles", "watch")}
    lines, optional = await missing_rights(kube, ("a",))
    assert lines == ["patch deployments.apps in namespace a (for: one Deployment a service)"]
    assert [right.resource for right in optional] == ["acceleratorprofiles"]


async def test_refusals_of_the_engine_stop_its_pods_and_outlive_the_operator(bench: Bench) -> None:
    await bench.inspected()
    deployment = bench.kube.objects[kinds.DEPLOYMENT, "test", "small"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    def owned(name: str, owner: dict[str, Any]) -> dict[str, Any]:
        references = [{"uid": owner["metadata"]["uid"], "controller": True}]
        return {"name": name, "namespace": "test", "labels": labels, "ownerReferences": references}

    replica_set = bench.kube.store(kinds.REPLICA_SET, {"metadata": owned("small-1", deployment)})
    for second in range(3):
        end = {"exitCode": 13, "finishedAt": f"2026-01-02T03:05:0{second}Z", "message": '{"message": "too large"}'}
        status = {"phase": "Running", "containerStatuses": [{"state": {"terminated": end}}]}
        bench.kube.store(kinds.POD, {"metadata": owned("small-1-a", replica_set), "status": status})
        await bench.settle()
    assert bench.kube.objects[kinds.DEPLOYMENT, "test", "small"]["spec"]["replicas"] == 0
    assert bench.condition("Stalled")["reason"] == "WeightsDoNotFit"
    del bench.kube.objects[kinds.POD, "test", "small-1-a"]
    writes = len(bench.kube.writes)
    restarted = Bench()
    restarted.kube.objects, restarted.kube._version = bench.kube.objects, bench.kube._version
    await restarted.settle()
    assert len(bench.kube.writes) == writes
    assert [write for write in restarted.kube.writes if "status" not in write] == []
    assert restarted.kube.objects[kinds.DEPLOYMENT, "test", "small"]["spec"]["replicas"] == 0
    await restarted.scraper.close()
