"""plan(request) -> Plan | Refusal: the planner's one entrance. Pure."""

from forebay_operator.planner.attempt import Attempt
from forebay_operator.planner.estimate import estimate
from forebay_operator.planner.explain import budget_line, explanation, kv_arithmetic, rejections
from forebay_operator.planner.formats import DTYPES, UNQUANTIZED
from forebay_operator.planner.kv_cache import kv_bytes_per_token
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planner.result import Plan, Refusal
from forebay_operator.planner.search import Search, nearest, search
from forebay_operator.planner.suggest import suggestions
from forebay_operator.planner.wording import gpus, size


def plan(request: PlanRequest) -> Plan | Refusal:
    """Choose formats and parallelism for a request, or say with numbers why nothing fits.

    The most precise formats that meet the KV budget win; with them the fewest accelerators.
    """
    found = search(request)
    if found.chosen is not None:
        return _plan(request, found.chosen, found)
    if found.impossible is not None:
        return Refusal(
            reason=found.impossible.reason,
            message=found.impossible.message,
            suggestions=tuple(suggestion.text for suggestion in suggestions(request)),
            rejected=tuple(found.ruled_out),
        )
    return _refusal(request, found)


def _plan(request: PlanRequest, chosen: Attempt, found: Search) -> Plan:
    option, shape = chosen.option, chosen.shape
    scheme = option.formats.scheme
    return Plan(
        tensor_parallel_size=option.tensor,
        pipeline_parallel_size=option.pipeline,
        weights=scheme.name,
        dtype=DTYPES[option.dtype_format],
        quantization=option.formats.engine_quantization,
        weight_bytes_per_gpu=option.weight_bytes,
        kv_cache_dtype=option.kv_format,
        engine_kv_cache_dtype=DTYPES.get(option.kv_format, option.kv_format),
        kv_bytes_per_token=kv_bytes_per_token(request.facts, option.kv_format),
        kv_bytes_per_token_per_gpu=shape.full_bytes_per_token + shape.sliding_bytes_per_token,
        kv_cache_tokens=chosen.kv_tokens,
        num_blocks=chosen.kv_tokens // request.block_size,
        block_size=request.block_size,
        max_model_len=request.model_len,
        max_num_seqs=chosen.max_num_seqs,
        max_num_batched_tokens=chosen.max_num_batched_tokens,
        guaranteed_sequences=chosen.guaranteed_sequences,
        guaranteed_length=request.model_len,
        memory=chosen.memory,
        estimate=estimate(request, chosen),
        explanation=explanation(request, chosen),
        rejected=rejections(request, found),
    )


def _refusal(request: PlanRequest, found: Search) -> Refusal:
    """Nothing fits: the numbers of the attempt that came closest."""
    best = nearest(found.attempts)
    memory, option = best.memory, best.option
    too_small = memory.headroom >= 0
    if too_small and request.kv_budget.kind != "percent":
        reason = "KVBudgetTooSmall"
        message = (
            f"{budget_line(request, best)}, but one sequence of maxModelLen {request.model_len:,} needs "
            f"{best.shape.sequence_tokens:,} tokens"
        )
    else:
        reason = "DoesNotFit"
        message = (
            f"does not fit on {gpus(option.num_ranks, request.accelerator.name)} with {_formats(best)}: each needs "
            f"{size(_need(best))} and has {size(memory.total)} (weights {size(memory.weights)}, KV cache "
            f"{size(_kv_need(best))}, everything else {size(memory.fixed - memory.weights)}); KV cache "
            f"{kv_arithmetic(request.facts, option.kv_format)} a token; {budget_line(request, best)}"
        )
    return Refusal(
        reason=reason,
        message=message,
        need_bytes=_need(best),
        have_bytes=memory.total,
        suggestions=tuple(suggestion.text for suggestion in suggestions(request)),
        explanation=explanation(request, best),
        rejected=rejections(request, found),
    )


def _kv_need(attempt: Attempt) -> int:
    """Bytes of the cache that was asked for, and at least of one sequence of the greatest length."""
    return max(attempt.memory.kv_cache, attempt.shape.bytes_for(attempt.shape.sequence_tokens))


def _need(attempt: Attempt) -> int:
    return attempt.memory.fixed + _kv_need(attempt)


def _formats(attempt: Attempt) -> str:
    scheme, kv_format = attempt.option.formats.scheme, attempt.option.kv_format
    same = scheme.format in UNQUANTIZED and scheme.format == kv_format
    return scheme.format if same else f"{scheme.name} weights and {kv_format} KV cache"
