"""Suggestions: the smallest single changes that make a refused request fit; each was tried before it is named."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.planner.options import powers_of_two
from forebay_operator.planner.request import KVBudget, PlanRequest
from forebay_operator.planner.search import closest, feasible
from forebay_operator.planner.wording import quantity, size

MAX_GPUS = 8
"""Nodes with more are rare."""
MEBI = 1 << 20
MAX_MEMORY = 1 << 40
MEMORY_STEP = 256 * MEBI
MODEL_LEN_STEP = 256
BUDGET_FIELDS = {"sequences": "kvBudget.concurrentSequences", "tokens": "kvBudget.tokens", "bytes": "kvBudget.memory"}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change as people read it, and the request with the change made, which fits."""

    text: str
    request: PlanRequest


def suggestions(request: PlanRequest) -> list[Suggestion]:
    """Changes that fit, those that cost the least first: request, formats, cut, hardware."""
    found: list[Suggestion] = []
    for changes in (_one_sequence, _smaller, _other_formats, _other_cut, _more_memory, _other_accelerator):
        found.extend(changes(request))
    return found


def _one_sequence(request: PlanRequest) -> Iterator[Suggestion]:
    """A promise that is too small for one sequence, made just large enough."""
    attempt = closest(request)
    if attempt is None or attempt.memory.headroom < 0 or request.kv_budget.kind not in ("tokens", "bytes"):
        return
    shape = attempt.shape
    if request.kv_budget.kind == "tokens":
        amount, text = shape.sequence_tokens, str(shape.sequence_tokens)
    else:
        needed = shape.bytes_for(shape.sequence_tokens) * attempt.option.num_ranks
        amount = -(-needed // MEBI) * MEBI
        text = quantity(amount)
    field = BUDGET_FIELDS[request.kv_budget.kind]
    yield from _if_fits(request, f"{field}: {text}", kv_budget=KVBudget(request.kv_budget.kind, amount))


def _smaller(request: PlanRequest) -> Iterator[Suggestion]:
    """A shorter context, a smaller promise, a smaller step."""
    facts, budget = request.facts, request.kv_budget
    if request.model_len > facts.max_positions:
        yield from _if_fits(request, f"context.maxModelLen: {facts.max_positions}", max_model_len=facts.max_positions)
    limit = min(request.model_len, facts.max_positions) - 1
    for step in (MODEL_LEN_STEP, request.block_size):
        best = _largest(limit, step, lambda length: replace(request, max_model_len=length))
        if best:
            yield Suggestion(f"context.maxModelLen: {best}", replace(request, max_model_len=best))
            break
    if budget.kind in BUDGET_FIELDS:
        step = {"sequences": 1, "tokens": request.block_size, "bytes": MEBI}[budget.kind]
        best = _largest(
            budget.amount - 1, step, lambda amount: replace(request, kv_budget=KVBudget(budget.kind, amount))
        )
        if best:
            value = quantity(best) if budget.kind == "bytes" else str(best)
            yield Suggestion(
                f"{BUDGET_FIELDS[budget.kind]}: {value}", replace(request, kv_budget=KVBudget(budget.kind, best))
            )
    if request.max_num_seqs != "auto" or request.max_num_batched_tokens != "auto":
        text = "engine.maxNumSeqs and engine.maxNumBatchedTokens: auto"
        yield from _if_fits(request, text, max_num_seqs="auto", max_num_batched_tokens="auto")


def _other_formats(request: PlanRequest) -> Iterator[Suggestion]:
    """The next lower format of the cache, then of the weights."""
    for kv_format in ("fp8", "int8"):
        if request.kv_cache_dtype != kv_format and request.accelerator.support(kv_format) == "native":
            fitting = list(_if_fits(request, f"quantization.kvCache: {kv_format}", kv_cache_dtype=kv_format))
            if fitting:
                yield fitting[0]
                break
    if request.floor is not None:
        yield from _if_fits(request, "quantization.floor: none", floor=None)
    for number_format in ("bf16", "fp8", "int8", "int4"):
        if number_format == request.weights or request.accelerator.support(number_format) == "none":
            continue
        change: dict[str, Any] = {"weights": number_format, "floor": None}
        fitting = list(_if_fits(request, f"quantization.weights: {number_format}", **change))
        if fitting:
            yield fitting[0]
            break


def _other_cut(request: PlanRequest) -> Iterator[Suggestion]:
    """Another tensor parallel size, more GPUs in a node, a second node."""
    if request.tensor != "auto":
        automatic = replace(request, tensor="auto")
        attempt = feasible(automatic)
        if attempt is not None:
            yield Suggestion(
                f"parallelism.tensor: {attempt.option.tensor}", replace(request, tensor=attempt.option.tensor)
            )
    if request.accelerator.device == "cpu":
        return
    for count in powers_of_two(MAX_GPUS):
        if count > request.node_gpus:
            fitting = list(_if_fits(request, f"nodes with {count} {request.accelerator.name}", gpus_per_node=count))
            if fitting:
                yield fitting[0]
                break
    if request.pipeline == "auto":
        yield from _if_fits(request, "two nodes, by pipeline parallelism", max_nodes=request.max_nodes + 1)


def _more_memory(request: PlanRequest) -> Iterator[Suggestion]:
    """A larger budget, on a CPU."""
    if request.accelerator.device != "cpu":
        return
    low, high = request.memory // MEMORY_STEP, MAX_MEMORY // MEMORY_STEP
    if feasible(replace(request, memory_bytes=high * MEMORY_STEP)) is None:
        return
    while high - low > 1:
        middle = (low + high) // 2
        if feasible(replace(request, memory_bytes=middle * MEMORY_STEP)) is None:
            low = middle
        else:
            high = middle
    memory = high * MEMORY_STEP
    yield Suggestion(f"accelerator.memory: {quantity(memory)}", replace(request, memory_bytes=memory))


def _other_accelerator(request: PlanRequest) -> Iterator[Suggestion]:
    """The two accelerators of the catalogue on which it fits for the least money."""
    if request.accelerator.device == "cpu":
        return
    fitting = []
    for profile in accelerators().values():
        if profile.name == request.accelerator.name or profile.device == "cpu":
            continue
        changed = replace(request, accelerator=profile, gpus_per_node=None, memory_bytes=None)
        attempt = feasible(changed)
        if attempt is not None:
            ranks = attempt.option.num_ranks
            text = f"accelerator.profile: {profile.name} ({ranks} of {size(profile.memory_bytes)} each)"
            fitting.append((ranks * profile.price_cents_per_hour[0], Suggestion(text, changed)))
    fitting.sort(key=lambda pair: pair[0])
    yield from (suggestion for _, suggestion in fitting[:2])


def _if_fits(request: PlanRequest, text: str, **change: Any) -> Iterator[Suggestion]:
    changed = replace(request, **change)
    if feasible(changed) is not None:
        yield Suggestion(text, changed)


def _largest(limit: int, step: int, changed: Any) -> int:
    """The largest multiple of `step` up to `limit` with which it fits; 0 when none does. Less always needs less."""
    low, high = 0, limit // step
    while low < high:
        middle = (low + high + 1) // 2
        if feasible(changed(middle * step)) is not None:
            low = middle
        else:
            high = middle - 1
    return low * step
