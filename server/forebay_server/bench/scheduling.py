"""What continuous batching and paging gain, measured: one engine, one mix of lengths, three ways to use it.

- `static`: every sequence reserves room for the longest; as many as fit are collected and run to the end of the last.
- `contiguous`: the same reservations, but a new sequence takes the place of each that ends (continuous batching).
- `paged`: what the engine does: sequences hold the blocks that they fill, and as many run as have room.

The first two exist here alone: the engine has no such modes, its requests are merely handed to it later.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forebay_server.bench.distribution import Distribution, distribution
from forebay_server.bench.engine_figures import EngineBenchError
from forebay_server.engine.engine import Engine
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams

Policy = Literal["static", "contiguous", "paged"]


@dataclass(frozen=True, slots=True)
class MixedRequest:
    """One request of the mix; all are there from the beginning."""

    prompt: list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """How one policy served the mix. Latencies in seconds since the beginning."""

    policy: Policy
    seconds: float
    output_tokens_per_second: float
    latency: Distribution | None
    mean_sequences: float
    """Running in a step, on average."""
    peak_sequences: int
    kv_waste: float
    """Share of the reserved KV slots that held nothing, on average over steps."""


def num_admitted(policy: Policy, num_running: int, num_slots: int) -> int:
    """How many requests may be handed to the engine now. Pure.

    Args:
        policy: whose rule.
        num_running: handed over and not ended.
        num_slots: longest sequences that fit the cache.
    """
    if policy == "static":
        return num_slots if num_running == 0 else 0
    if policy == "contiguous":
        return max(0, num_slots - num_running)
    return 1 << 30


def kv_waste(policy: Policy, lengths: Sequence[int], longest: int, block_size: int) -> float:
    """The share of reserved slots that hold nothing. Pure.

    Args:
        policy: how slots are reserved.
        lengths: tokens of each running sequence; not empty.
        longest: that a sequence can become.
        block_size: tokens of a block.
    """
    if policy == "paged":
        reserved = sum(-(-length // block_size) * block_size for length in lengths)
    else:
        reserved = longest * len(lengths)
    return 1 - sum(lengths) / reserved


def run_policy(engine: Engine, policy: Policy, mix: Sequence[MixedRequest], longest: int) -> PolicyFigures:
    """Serve the whole mix once.

    Args:
        engine: loaded, warm, with nothing to do.
        policy: see this module.
        mix: in the order in which it is served.
        longest: prompt and output of a sequence at most.
    """
    engine.scheduler.reset_prefix_cache()
    pool = engine.scheduler.pool
    num_slots = max(1, pool.capacity_tokens // longest)
    waiting = deque(enumerate(mix))
    lengths: dict[str, int] = {}
    """Of the sequences that have their first token."""
    in_engine: set[str] = set()
    latencies: list[float] = []
    running, wastes = [], []
    started = time.perf_counter()
    while waiting or engine.has_work:
        for _ in range(min(num_admitted(policy, len(in_engine), num_slots), len(waiting))):
            number, request = waiting.popleft()
            request_id = f"{policy}-{number}-{started}"
            sampling = SamplingParams(max_tokens=request.output_tokens, temperature=0, ignore_eos=True)
            engine.add(AddRequest(request_id=request_id, prompt_token_ids=request.prompt, sampling=sampling))
            in_engine.add(request_id)
        for output in engine.step():
            if output.error is not None:
                raise EngineBenchError(f"the engine failed: {output.error}")
            number = int(output.request_id.split("-")[1])
            known = lengths.get(output.request_id, len(mix[number].prompt))
            lengths[output.request_id] = known + len(output.token_ids)
            if output.finish_reason is not None:
                in_engine.discard(output.request_id)
                del lengths[output.request_id]
                latencies.append(time.perf_counter() - started)
        if lengths:
            running.append(len(lengths))
            wastes.append(kv_waste(policy, list(lengths.values()), longest, pool.block_size))
    seconds = time.perf_counter() - started
    return PolicyFigures(
        policy=policy,
        seconds=seconds,
        output_tokens_per_second=sum(request.output_tokens for request in mix) / seconds,
        latency=distribution(latencies),
        mean_sequences=sum(running) / max(1, len(running)),
        peak_sequences=max(running, default=0),
        kv_waste=sum(wastes) / max(1, len(wastes)),
    )
