"""calculate(inputs, variants) -> Result: GPUs, cost and saving now and after each optimization. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from forebay_operator.roi.inputs import DAYS_PER_MONTH, HOURS_PER_MONTH, SECONDS_PER_DAY, Inputs
from forebay_operator.roi.steps import OPTIMIZATIONS, Optimization
from forebay_operator.roi.throughput import Serving, batch_size, request_seconds
from forebay_operator.roi.variant import Variant

Verdict = Literal["applied", "in use", "later", "no gain", "not available"]

ROUNDING = 1e-9
"""Relative difference that counts as none: a sum that is a whole number but for rounding is not rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The situation now, or with one more optimization; money in US dollars a month."""

    key: str
    name: str
    verdict: Verdict
    """`in use`: today has it, or more than it alone would give. `no gain`: it would not lower the cost here and is left
    out; `later`: but it does together with a row further down. `not available`: nothing of the kind fits."""
    factor: float
    """Requests for the same GPU time, against the row before; what it would have been when it is left out. Below 1 when
    smaller replicas need fewer GPUs for a small load."""
    format: str
    batch: int
    gpus_per_replica: int
    tokens_per_second: float
    """Output tokens of one GPU that has work; today's are what the load, the GPUs and their utilization say."""
    gpus: int
    cost: float
    cost_per_million_tokens: float | None
    """Output tokens, prompts included in the price; None without requests."""
    saving: float
    """Against what is paid now; negative when more GPUs are needed than are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The first row is today; then the optimizations, each with all before it."""

    rows: tuple[Row, ...]
    gpus_one_at_a_time: int
    """What today's load needs when requests are served one at a time at today's utilization: to be compared with
    the GPUs that are there."""
    speed_one_at_a_time: float
    """Output tokens a second of one GPU that serves so."""


@dataclass(frozen=True, slots=True)
class _State:
    """A way to serve, and what it takes."""

    variant: Variant
    serving: Serving
    seconds: float
    """Of one replica, for a request."""
    gpus: int

    @property
    def gpu_seconds(self) -> float:
        """Of all GPUs of a replica, for a request."""
        return self.seconds * self.variant.gpus

    def order(self) -> tuple[int, float]:
        """Less is better: the bill first, then what is left for more load."""
        return self.gpus, self.gpu_seconds


def calculate(inputs: Inputs, variants: Sequence[Variant]) -> Result:
    """Work out every row: the cheapest of all that was introduced so far.

    Args:
        inputs: the situation.
        variants: of one model on one accelerator, the most precise first; at least one.

    Raises:
        ValueError: there is no variant.
    """
    if not variants:
        raise ValueError("nothing fits: there is no variant to calculate with")
    formats: tuple[str, ...] = (variants[0].format,)
    serving = Serving()
    state = min(_states(inputs, variants, formats, serving, inputs.utilization), key=_State.order)
    now = state.gpus if inputs.gpus is None else inputs.gpus
    bill = _cost(now, inputs)
    alone, alone_speed = state.gpus, inputs.output_tokens / state.gpu_seconds
    speed = alone_speed if inputs.gpus is None else _speed_now(inputs, inputs.gpus) or alone_speed
    today = _row("today", "Today", "applied", 1.0, replace(state, gpus=now), bill, inputs)
    rows = [replace(today, tokens_per_second=speed)]
    utilization = max(inputs.utilization, inputs.target_utilization)
    for optimization in OPTIMIZATIONS:
        before = _at(state, inputs, utilization)
        serving = optimization.apply(serving)
        new = _states(inputs, variants, optimization.formats or formats, serving, utilization)
        formats += tuple(name for name in optimization.formats if name not in formats)
        # What was introduced earlier and did not help can help now.
        everything = _states(inputs, variants, formats, serving, utilization)
        state = min(before, *everything, key=_State.order)
        verdict, factor = _verdict(optimization, variants[0].format, before, new, state)
        rows.append(_row(optimization.key, optimization.name, verdict, factor, state, bill, inputs))
    # Batching begins from what the GPUs really give, which is not always one request at a time.
    factor = rows[1].tokens_per_second / speed
    rows[1] = replace(rows[1], factor=factor, verdict="in use" if factor < 1 else rows[1].verdict)
    return Result(rows=_with_later(rows), gpus_one_at_a_time=alone, speed_one_at_a_time=alone_speed)


def _verdict(
    optimization: Optimization, base: str, before: _State, new: list[_State], state: _State
) -> tuple[Verdict, float]:
    """What one step is worth, and by how much.

    Args:
        optimization: the step.
        base: the format that the model has without any.
        before: the row before.
        new: what this step makes possible; empty when nothing of the kind fits.
        state: the cheapest of all so far.
    """
    if base in optimization.formats:
        return "in use", 1.0  # the model fits only so
    if not new:
        return "not available", 1.0
    best = min(new, key=_State.order)
    factor = before.gpu_seconds / best.gpu_seconds
    gains = state is not before and (best.gpus < before.gpus or factor > 1 + ROUNDING)
    return ("applied", before.gpu_seconds / state.gpu_seconds) if gains else ("no gain", factor)


def _with_later(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows in which what did not help at first, but is used further down, says so."""
    formats = {optimization.key: optimization.formats for optimization in OPTIMIZATIONS}
    return tuple(
        replace(row, verdict="later")
        if row.verdict == "no gain" and any(after.format in formats[row.key] for after in rows[index + 1 :])
        else row
        for index, row in enumerate(rows)
    )


def _speed_now(inputs: Inputs, gpus: int) -> float:
    """Output tokens a second of one GPU while it has work, from what is served and paid for."""
    served = inputs.requests_per_day * inputs.output_tokens / SECONDS_PER_DAY
    return served / (gpus * inputs.utilization / 100)


def _states(
    inputs: Inputs, variants: Sequence[Variant], formats: Sequence[str], serving: Serving, utilization: float
) -> list[_State]:
    """Every variant of these formats, served so."""
    return [
        _State(variant, serving, seconds, _gpus(variant, seconds, inputs, utilization))
        for variant in variants
        if variant.format in formats
        for seconds in (request_seconds(variant, serving, inputs),)
    ]


def _at(state: _State, inputs: Inputs, utilization: float) -> _State:
    """The same at another utilization."""
    return replace(state, gpus=_gpus(state.variant, state.seconds, inputs, utilization))


def _gpus(variant: Variant, seconds: float, inputs: Inputs, utilization: float) -> int:
    """GPUs in whole replicas, at least one, when a request takes so long."""
    replicas = inputs.requests_per_day * seconds / SECONDS_PER_DAY / (utilization / 100)
    return max(1, math.ceil(replicas * (1 - ROUNDING))) * variant.gpus


def _cost(gpus: int, inputs: Inputs) -> float:
    return gpus * inputs.price * HOURS_PER_MONTH


def _row(key: str, name: str, verdict: Verdict, factor: float, state: _State, bill: float, inputs: Inputs) -> Row:
    cost = _cost(state.gpus, inputs)
    tokens = inputs.requests_per_day * DAYS_PER_MONTH * inputs.output_tokens
    return Row(
        key=key,
        name=name,
        verdict=verdict,
        factor=factor,
        format=state.variant.format,
        batch=batch_size(state.variant, state.serving, inputs),
        gpus_per_replica=state.variant.gpus,
        tokens_per_second=inputs.output_tokens / state.gpu_seconds,
        gpus=state.gpus,
        cost=cost,
        cost_per_million_tokens=cost / tokens * 1e6 if tokens else None,
        saving=bill - cost,
    )
