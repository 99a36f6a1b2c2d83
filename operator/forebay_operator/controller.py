"""The controller: takes keys from the queue, observes, reconciles, and does what reconcile wants done."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from forebay_operator import kinds, names
from forebay_operator.actions import Action, Apply, Delete, Event, PatchStatus, Scale, SetDeletionCost
from forebay_operator.autoscale import History
from forebay_operator.cache import Cache
from forebay_operator.errors import GoneError, RefusedError
from forebay_operator.failures import Failure
from forebay_operator.kube import Kube
from forebay_operator.observe import Observer
from forebay_operator.observed import named_profile
from forebay_operator.reconcile import reconcile
from forebay_operator.work_queue import Key, WorkQueue

logger = logging.getLogger(__name__)

Body = Mapping[str, Any]


@dataclass(slots=True)
class Memory:
    """What must be remembered of one service between two looks."""

    history: History = field(default_factory=History)
    apply_problem: Failure | None = None


class Controller:
    """Brings services to what their specs say. Belongs to one event loop."""

    def __init__(self, kube: Kube, cache: Cache, queue: WorkQueue, observer: Observer) -> None:
        self._kube = kube
        self._cache = cache
        self._queue = queue
        self._observer = observer
        self._memory: dict[Key, Memory] = {}

    async def handle(self, key: Key) -> float | None:
        """Reconcile one service once; seconds after which to look again, or None.

        Raises:
            ApiError: something could not be read or written; the queue tries again.
        """
        service = self._cache.get(kinds.INFERENCE_SERVICE, *key)
        if service is None or "deletionTimestamp" in service["metadata"]:
            self._memory.pop(key, None)  # the children go with their owner: the cluster's garbage collector does it
            return None
        memory = self._memory.setdefault(key, Memory())
        observed = await self._observer.observe(service, datetime.now(UTC), memory.history, memory.apply_problem)
        outcome = reconcile(observed)
        problem = await self._execute(service, outcome.actions)
        memory.history = outcome.history
        if problem is None and memory.apply_problem is None:
            return outcome.requeue_seconds
        if problem == memory.apply_problem:
            raise RefusedError(problem.message if problem else "")
        memory.apply_problem = problem
        return 0.0  # once more, so that the status tells of the problem, or of its end

    async def _execute(self, service: Body, actions: tuple[Action, ...]) -> Failure | None:
        """Do all that can be done; returns the first refusal of a child, and writes the status all the same."""
        problem: Failure | None = None
        for action in actions:
            try:
                await self._do(service, action)
            except GoneError as error:
                logger.info("%s", error)  # it went away meanwhile; the watch brings the news
            except RefusedError as error:
                if isinstance(action, Event):
                    logger.warning("%s", error)  # an event is a courtesy
                    continue
                if not isinstance(action, Apply | Scale):
                    raise
                problem = problem or Failure("ApplyFailed", str(error))
        return problem

    async def _do(self, service: Body, action: Action) -> None:
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        match action:
            case Apply(manifest):
                logger.info("%s/%s: apply %s %s", namespace, name, manifest["kind"], manifest["metadata"]["name"])
                body = await self._kube.apply(manifest)
                self._cache.put(kinds.kind_of(manifest["apiVersion"], manifest["kind"]), body)
            case Delete(api_version, kind, child, uid):
                logger.info("%s/%s: delete %s %s", namespace, name, kind, child)
                await self._kube.delete(kinds.kind_of(api_version, kind), namespace, child, uid)
            case SetDeletionCost(pod, cost):
                body = await self._kube.annotate_pod(namespace, pod, {names.DELETION_COST_ANNOTATION: cost})
                self._cache.put(kinds.POD, body)
            case Scale(replicas):
                logger.info("%s/%s: scale to %d", namespace, name, replicas)
                await self._kube.scale(namespace, name, replicas)
            case PatchStatus(status):
                body = await self._kube.apply_status(namespace, name, status)
                self._cache.put(kinds.INFERENCE_SERVICE, body)
            case Event(kind, reason, message):
                logger.info("%s/%s: %s: %s", namespace, name, reason, message)
                await self._kube.create_event(service, kind, reason, message)

    def saw(self, kind: kinds.Kind, body: Body, *, deleted: bool) -> None:
        """Take in one watch event, and queue the services that it may concern."""
        if deleted:
            self._cache.remove(kind, body)
        elif not self._cache.put(kind, body):
            return
        for key in self._concerned(kind, body):
            self._queue.add(key)

    def _concerned(self, kind: kinds.Kind, body: Body) -> list[Key]:
        metadata = body["metadata"]
        if kind == kinds.INFERENCE_SERVICE:
            return [(metadata["namespace"], metadata["name"])]
        if kind in (kinds.ACCELERATOR_PROFILE, kinds.NODE):
            return [
                (service["metadata"]["namespace"], service["metadata"]["name"])
                for service in self._cache.all(kinds.INFERENCE_SERVICE)
                if named_profile(service) in (None, metadata["name"])
            ]
        name = (metadata.get("labels") or {}).get(names.SERVICE_LABEL)
        return [(metadata["namespace"], name)] if name else []
