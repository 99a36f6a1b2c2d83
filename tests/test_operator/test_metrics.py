"""What Prometheus and the kubelet are told on the health port, over real HTTP."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_operator import kinds, metrics
from forebay_operator.cache import Cache
from forebay_operator.errors import ApiError
from forebay_operator.health import STUCK_SECONDS, HealthServer, trouble
from forebay_operator.metrics import OperatorMetrics
from forebay_operator.resync import Resync
from forebay_operator.settings import SettingsError
from forebay_operator.work_queue import Key, WorkQueue
from tests.test_operator.fake_kube import FakeKube


class Bench:
    """Cache, queue and watches behind a health port."""

    def __init__(self) -> None:
        self.cache, self.queue = Cache(), WorkQueue()
        self.resync = Resync(FakeKube(), self.cache, self.queue, kinds.WATCHED, (), 300)
        self.metrics = OperatorMetrics(self.cache, self.queue, self.resync)
        self.server = HealthServer(lambda: trouble(self.queue, self.resync), self.metrics.exposition)
        self.port = 0

    async def get(self, path: str) -> tuple[int, str, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/{path}") as response,
        ):
            return response.status, response.headers["Content-Type"], await response.text()

    async def scrape(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Values by name, without the prefix, and label values in the order of the label names."""
        status, kind, text = await self.get("metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        return {
            (sample.name.removeprefix("forebay_operator_"), tuple(v for _, v in sorted(sample.labels.items()))): value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for value in [sample.value]
        }

    def know(self, name: str, status: dict[str, Any] | None = None, **spec: Any) -> None:
        metadata = {"namespace": "test", "name": name, "uid": name, "resourceVersion": "1"}
        body = {"metadata": metadata, "spec": {"replicas": 1, **spec}, "status": status or {}}
        self.cache.put(kinds.INFERENCE_SERVICE, body)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.port = await bench.server.start(0)
    yield bench
    await bench.server.close()


async def test_reconciles_are_counted_and_timed_by_how_they_end(bench: Bench) -> None:
    before = await bench.scrape()
    assert before["reconciles_total", ("error",)] == 0

    async def handle(key: Key) -> float | None:
        if key[1] == "bad":
            raise ApiError("away")
        return None

    counted = bench.metrics.measured(handle)
    for name in ("good", "fine", "bad"):
        bench.queue.add(("test", name))
        await bench.queue.work_once(counted)
    seen = await bench.scrape()
    assert seen["reconciles_total", ("done",)] == 2
    assert seen["reconciles_total", ("error",)] == 1
    assert seen["reconcile_duration_seconds_count", ()] == 3
    assert seen["work_queue_retries_total", ()] == 1


async def test_the_queue_is_shown_as_it_is(bench: Bench) -> None:
    bench.queue.add(("test", "a"))
    bench.queue.add(("test", "b"))
    during: list[float] = []

    async def handle(key: Key) -> None:
        seen = await bench.scrape()
        during.extend((seen["work_queue_depth", ()], seen["work_queue_active", ()]))

    await bench.queue.work_once(handle)
    assert during == [1, 1]


async def test_replicas_and_conditions_of_each_service(bench: Bench) -> None:
    conditions = [{"type": "Ready", "status": "False"}, {"type": "PlanVerified", "status": "True"}]
    bench.know("big", {"readyReplicas": 2, "conditions": conditions}, replicas=3)
    bench.know("asleep", suspend=True)
    seen = await bench.scrape()
    assert seen["service_desired_replicas", ("test", "big")] == 3
    assert seen["service_ready_replicas", ("test", "big")] == 2
    assert seen["service_desired_replicas", ("test", "asleep")] == 0
    assert {key[1] for key in seen if key[0] == "service_condition"} == {
        ("test", "big", "False", "Ready"),
        ("test", "big", "True", "PlanVerified"),
    }
    bench.cache.remove(kinds.INFERENCE_SERVICE, {"metadata": {"namespace": "test", "name": "big", "uid": "big"}})
    assert ("service_desired_replicas", ("test", "big")) not in await bench.scrape()


async def test_the_number_of_series_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_SERVICES", 2)
    for name in ("c", "a", "b"):
        bench.know(name)
    seen = await bench.scrape()
    assert (seen["services", ()], seen["services_hidden", ()]) == (3, 1)
    assert {key[1][1] for key in seen if key[0] == "service_ready_replicas"} == {"a", "b"}


async def test_each_watch_and_the_version_are_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = await bench.scrape()
    assert {key[1][0] for key in seen if key[0] == "watch_age_seconds"} == {kind.plural for kind in kinds.WATCHED}
    monkeypatch.setattr(bench.resync, "_started", bench.resync._started - 100)
    bench.resync.saw_event(kinds.POD)
    seen = await bench.scrape()
    assert seen["watch_age_seconds", ("pods",)] < 50
    assert seen["watch_age_seconds", ("deployments",)] >= 100
    assert seen["listing_age_seconds", ()] < 50
    assert seen["build_info", (metrics.version(),)] == 1


async def test_health_is_bad_while_a_watch_is_deaf_or_a_reconcile_hangs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await bench.get("healthz"))[0] == 200
    bench.resync.suspect({kinds.POD}, bench.resync._started + 1000)
    assert (await bench.get("healthz"))[::2] == (503, "no events come for pods\n")
    bench.resync.saw_event(kinds.POD)
    monkeypatch.setattr(bench.queue, "longest_active_seconds", lambda: STUCK_SECONDS + 1.0)
    assert (await bench.get("healthz"))[::2] == (503, "a reconcile hangs\n")


async def test_a_port_that_is_taken_is_named() -> None:
    other = Bench()
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"FOREBAY_HEALTH_PORT {port}"):
            await other.server.start(port)
    await other.server.close()
