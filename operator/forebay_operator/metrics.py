"""The operator's own metrics: counted while it reconciles; read from cache, queue and watches when they are asked for.

Nothing is kept per service here, so a service that goes takes its series along.
"""

import importlib.metadata
from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay_operator import kinds
from forebay_operator.cache import Body, Cache
from forebay_operator.resync import Resync
from forebay_operator.work_queue import Key, WorkQueue

PREFIX = "forebay_operator"
MAX_SERVICES = 1000
"""Services with series of their own, about ten each: the first by namespace and name."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OF_SERVICE = ("namespace", "service")

Handle = Callable[[Key], Awaitable[float | None]]


class OperatorMetrics:
    """One registry with everything that a scrape shows. Belongs to the event loop of the operator."""

    def __init__(self, cache: Cache, queue: WorkQueue, resync: Resync) -> None:
        self._registry = CollectorRegistry()
        self._reconciles = Counter(
            f"{PREFIX}_reconciles", "Reconciles, by how they ended.", ("result",), registry=self._registry
        )
        for result in ("done", "error"):
            self._reconciles.labels(result)  # a rate needs the zero before the first one
        self._duration = Histogram(
            f"{PREFIX}_reconcile_duration_seconds",
            "How long one reconcile of one service took.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        Info(f"{PREFIX}_build", "Version of the operator.", registry=self._registry).info({"version": version()})
        ProcessCollector(registry=self._registry)
        self._registry.register(_Snapshot(cache, queue, resync))

    def measured(self, handle: Handle) -> Handle:
        """The same, counted and timed."""

        async def counted(key: Key) -> float | None:
            result = "error"
            with self._duration.time():
                try:
                    again = await handle(key)
                    result = "done"
                finally:
                    self._reconciles.labels(result).inc()
            return again

        return counted

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


def version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version("forebay")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # runs from a source tree


class _Snapshot(Collector):
    """What is so at this moment."""

    def __init__(self, cache: Cache, queue: WorkQueue, resync: Resync) -> None:
        self._cache = cache
        self._queue = queue
        self._resync = resync

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        yield from self._work()
        yield from self._watches()
        yield from self._services()

    def _work(self) -> Iterator[Metric]:
        queue = self._queue
        yield _gauge("work_queue_depth", "Services that wait for a worker.", queue.num_waiting)
        yield _gauge("work_queue_active", "Services that are worked on.", queue.num_active)
        yield _gauge(
            "work_queue_longest_active_seconds",
            "How long the oldest reconcile in progress has been going on.",
            queue.longest_active_seconds(),
        )
        retries = "Failed reconciles that were put back, to be tried again more slowly."
        yield CounterMetricFamily(f"{PREFIX}_work_queue_retries", retries, queue.num_retries)

    def _watches(self) -> Iterator[Metric]:
        ages = GaugeMetricFamily(
            f"{PREFIX}_watch_age_seconds",
            "Since the last event of a watch; high also where nothing happens.",
            labels=("kind",),
        )
        for kind, age in self._resync.watch_ages().items():
            ages.add_metric((kind.plural,), age)
        yield ages
        listing = "Since everything was last listed; the operator is restarted when this gets far above its interval."
        yield _gauge("listing_age_seconds", listing, self._resync.listing_age())

    def _services(self) -> Iterator[Metric]:
        services = sorted(self._cache.all(kinds.INFERENCE_SERVICE), key=_key)
        shown = services[:MAX_SERVICES]
        yield _gauge("services", "InferenceServices that are looked after.", len(services))
        hidden = "InferenceServices without series of their own, because there are too many."
        yield _gauge("services_hidden", hidden, len(services) - len(shown))
        desired = GaugeMetricFamily(
            f"{PREFIX}_service_desired_replicas", "Pods asked for; 0 while suspended.", labels=_OF_SERVICE
        )
        ready = GaugeMetricFamily(
            f"{PREFIX}_service_ready_replicas", "Pods of the current revision that serve.", labels=_OF_SERVICE
        )
        conditions = GaugeMetricFamily(
            f"{PREFIX}_service_condition",
            "1 for the status that a condition has: True, False or Unknown.",
            labels=(*_OF_SERVICE, "type", "status"),
        )
        for body in shown:
            spec, status = body.get("spec", {}), body.get("status") or {}
            desired.add_metric(_key(body), 0 if spec.get("suspend") else spec.get("replicas", 1))
            ready.add_metric(_key(body), status.get("readyReplicas", 0))
            for condition in status.get("conditions", ()):
                conditions.add_metric((*_key(body), condition["type"], condition["status"]), 1)
        yield from (desired, ready, conditions)


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", meaning, value)


def _key(body: Body) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]
