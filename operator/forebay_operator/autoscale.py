"""How many replicas a service should have, from what its pods say of their queues. Pure.

Rules, each against a fault that other autoscalers had:
- pods that load are supply: while any does, nothing more is added;
- a pod that cannot be asked is neither idle nor gone: what the others say may add a replica, never remove one;
- a replica is removed only after the load was low for the whole delay, one at a time, and with a dead band between the
  thresholds for up and down;
- the bounds hold without any traffic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from forebay_operator.api.common import duration_seconds
from forebay_operator.api.inference_service import Scaling, ScalingTarget

DEAD_BAND = 0.1
"""Share above the target that does not yet add a replica."""
LOW_QUEUE = 0.5
"""Share of the target that the queue may reach after a replica was removed."""
STEP_DOWN_SECONDS = 30
"""Between two removals, so that the first one's effect is seen."""
LOADING_DEADLINE_SECONDS = 1800
"""A pod that has not served by then no longer counts as supply that will come."""

ReplicaState = Literal["serving", "loading", "failed", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One pod as the autoscaler sees it."""

    pod: str
    state: ReplicaState
    age_seconds: float
    running: int | None = None
    waiting: int | None = None
    """None, both: the pod could not be asked."""
    current_revision: bool = True

    @property
    def load(self) -> int | None:
        """Requests in the pod; None: not known."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Need:
    """How many replicas the load asked for at one time."""

    at: datetime
    replicas: int


@dataclass(frozen=True, slots=True)
class History:
    """What must be remembered between decisions. Empty after a restart: then the delay begins anew."""

    since: datetime | None = None
    """Begin of the observation; None: nothing was seen yet."""
    needs: tuple[Need, ...] = ()
    """Candidates for the largest need within the delay, each smaller than the one before it."""

    def with_need(self, at: datetime, replicas: int, window: timedelta) -> "History":
        """The history after one more observation; forgets what lies before the window."""
        kept = [need for need in self.needs if need.at > at - window and need.replicas > replicas]
        return History(self.since or at, (*kept, Need(at, replicas)))

    def largest(self) -> int:
        """The largest need that is remembered."""
        return max((need.replicas for need in self.needs), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The numbers behind a decision."""

    current_replicas: int
    ready_replicas: int
    loading_replicas: int
    reporting_replicas: int
    waiting: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many replicas there should be, why, and what to remember."""

    desired: int
    reason: str
    message: str
    inputs: Inputs
    history: History
    victim: str | None = None
    """The pod that should go when one is removed: the emptiest."""
    blind: bool = False
    """No serving pod could be asked."""


def decide(
    samples: Sequence[Sample],
    spec: Scaling,
    *,
    current: int,
    capacity: int,
    now: datetime,
    history: History,
    last_scale: datetime | None = None,
) -> Decision:
    """The decision for one service.

    Args:
        samples: every pod that is not being deleted.
        spec: mode QueueDepth; bounds, thresholds and delay.
        current: replicas asked for at present.
        capacity: requests that one pod can run at once, by its plan; at least 1.
        now: the time of the samples.
        history: as the last decision returned it.
        last_scale: when the operator last changed replicas.
    """
    target = spec.target or ScalingTarget()
    serving = [sample for sample in samples if sample.state == "serving"]
    known = [sample for sample in serving if sample.load is not None]
    loading = [s for s in samples if s.state == "loading" and s.age_seconds < LOADING_DEADLINE_SECONDS]
    inputs = Inputs(
        current_replicas=current,
        ready_replicas=len(serving),
        loading_replicas=len(loading),
        reporting_replicas=len(known),
        waiting=sum(sample.waiting or 0 for sample in known),
        running=sum(sample.running or 0 for sample in known),
    )
    held = Decision(
        desired=current, reason="", message="", inputs=inputs, history=history, blind=bool(serving and not known)
    )
    if current < spec.min_replicas or current > spec.max_replicas:
        bound = min(max(current, spec.min_replicas), spec.max_replicas)
        return replace(
            held,
            desired=bound,
            reason="OutOfBounds",
            message=f"{current} is outside of {spec.min_replicas} to {spec.max_replicas}",
        )
    if not serving:
        return replace(held, reason="NothingServes", message="no pod serves yet, so the load is not known")
    if held.blind:
        return replace(held, reason="MetricsUnavailable", message=f"none of {len(serving)} serving pods tells its load")
    wanted = math.ceil(inputs.waiting / target.waiting_per_replica)
    threshold = target.waiting_per_replica * (1 + DEAD_BAND) * max(len(serving), 1)
    if inputs.waiting > threshold:
        history = history.with_need(now, max(wanted, current), _window(spec))
        return _up(replace(held, history=history), spec, wanted, target, num_pods=len(samples))
    if len(known) < len(serving):
        missing = len(serving) - len(known)
        return replace(
            held, reason="PartialMetrics", message=f"{missing} of {len(serving)} serving pods do not tell their load"
        )
    need = max(
        math.ceil((inputs.waiting + inputs.running) * 100 / (capacity * target.utilization_percent)),
        math.ceil(inputs.waiting / (target.waiting_per_replica * LOW_QUEUE)),
        1,
    )
    held = replace(held, history=history.with_need(now, need, _window(spec)))
    return _down(held, spec, samples, known, now, last_scale)


def _window(spec: Scaling) -> timedelta:
    return timedelta(seconds=duration_seconds(spec.scale_down_delay))


def _up(held: Decision, spec: Scaling, wanted: int, target: ScalingTarget, *, num_pods: int) -> Decision:
    inputs = held.inputs
    told = f"{inputs.waiting} requests wait in {inputs.reporting_replicas} pods, over {target.waiting_per_replica} each"
    if inputs.loading_replicas:
        return replace(held, reason="WaitingForLoading", message=f"{told}; {inputs.loading_replicas} pods are loading")
    current = inputs.current_replicas
    if current >= spec.max_replicas:
        return replace(held, reason="AtMaximum", message=f"{told}; maxReplicas is {spec.max_replicas}")
    if num_pods < current:
        return replace(held, reason="WaitingForPods", message=f"{told}; {num_pods} of {current} pods exist")
    desired = min(spec.max_replicas, max(current + 1, min(wanted, 2 * current)))
    return replace(held, desired=desired, reason="QueueAboveTarget", message=told)


def _down(
    held: Decision,
    spec: Scaling,
    samples: Sequence[Sample],
    known: Sequence[Sample],
    now: datetime,
    last_scale: datetime | None,
) -> Decision:
    inputs, current = held.inputs, held.inputs.current_replicas
    told = f"{inputs.waiting} requests wait and {inputs.running} run in {inputs.reporting_replicas} pods"
    need = max(held.history.largest(), spec.min_replicas)
    if current <= spec.min_replicas or need >= current:
        return replace(held, reason="WithinTarget", message=told)
    if len(known) < len(samples) or len(known) != current or not all(sample.current_revision for sample in known):
        return replace(held, reason="WaitingForPods", message=f"{told}; not every pod serves the present revision")
    since = held.history.since or now
    if now - since < _window(spec) or (last_scale and now - last_scale < timedelta(seconds=STEP_DOWN_SECONDS)):
        return replace(held, reason="ScaleDownDelay", message=f"{told}; {need} would do, for less than the delay")
    victim = min(known, key=lambda sample: (sample.load or 0, sample.age_seconds, sample.pod))
    return replace(held, desired=current - 1, reason="LoadLow", message=f"{told}; {need} would do", victim=victim.pod)
