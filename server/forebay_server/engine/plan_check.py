"""The operator's plan beside what the engine finds: how much memory it leaves, and the refusal when that is too little.

Pure. `memory_meter` measures; here is only arithmetic. All bytes are those of one accelerator, or of a `cpu` pod.
"""

from forebay_server.engine.kv_cache import KVCacheLayout
from forebay_server.errors import ExitCode, StartupError
from forebay_server.planned_memory import PlannedMemory

_COUNTED = {ExitCode.WEIGHTS_DO_NOT_FIT: "weights", ExitCode.KV_CACHE_DOES_NOT_FIT: "KV cache"}


def room(planned: PlannedMemory | None, free_bytes: int, weight_bytes: int = 0) -> int:
    """Bytes for what comes next: what is free, and no more than the plan's budget leaves.

    Args:
        planned: None where there is no plan.
        free_bytes: of the device now.
        weight_bytes: that are already loaded.
    """
    if planned is None:
        return free_bytes
    return max(0, min(free_bytes, planned.total - planned.reserved - weight_bytes))


def with_plan(error: StartupError, planned: PlannedMemory | None) -> StartupError:
    """A refusal for want of memory, with what the plan counted on; any other error as it is."""
    name = _COUNTED.get(error.exit_code)
    if planned is None or name is None:
        return error
    counted = planned.weights if name == "weights" else planned.kv_cache
    return StartupError(
        error.exit_code,
        error.reason,
        f"{error.message}; the plan counts on {counted:,} bytes for the {name} and "
        f"{planned.reserved:,} for everything around it, of {planned.total:,}",
        need_bytes=error.need_bytes,
        have_bytes=error.have_bytes,
        suggestion=error.suggestion,
    )


def check_step(
    planned: PlannedMemory | None,
    layout: KVCacheLayout,
    *,
    peak_bytes: int,
    num_tokens: int,
    weight_bytes: int,
    free_bytes: int,
) -> None:
    """Refuse to serve when the full cache and the largest step do not fit together.

    Args:
        planned: None where there is no plan.
        layout: of the cache, of which nothing is touched yet.
        peak_bytes: the most that a step of `num_tokens` tokens took, measured.
        num_tokens: `max_num_batched_tokens`.
        weight_bytes: that are loaded.
        free_bytes: of the device before that step, the untouched cache included.

    Raises:
        StartupError: 14, with what fits instead.
    """
    have = room(planned, free_bytes, weight_bytes)
    need = layout.num_bytes + peak_bytes
    if need <= have:
        return
    fitting = max(0, have - peak_bytes) // layout.bytes_per_token // layout.block_size * layout.block_size
    more = f"{need - have:,} bytes more memory"
    error = StartupError(
        ExitCode.KV_CACHE_DOES_NOT_FIT,
        "KVCacheDoesNotFit",
        f"a KV cache of {layout.num_tokens:,} tokens ({layout.num_bytes:,} bytes) beside a step of {num_tokens:,} "
        f"tokens ({peak_bytes:,} bytes, measured) needs {need:,} bytes; {have:,} are there",
        need_bytes=need,
        have_bytes=have,
        suggestion=(
            f"use --kv-cache-tokens {fitting}, a smaller --max-num-batched-tokens, or {more}"
            if fitting
            else f"use a smaller --max-num-batched-tokens, or {more}"
        ),
    )
    raise with_plan(error, planned)
