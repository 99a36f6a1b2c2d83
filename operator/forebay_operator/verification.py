"""Whether the engine measured what the plan says: the condition PlanVerified. Pure; nothing is done about the answer.

Weights may differ a little, because tensors are padded; the KV cache is asked for by number and must be exact; what a
step takes is planned as an upper bound, and the margin is there for what goes beyond it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from forebay_operator.conditions import Statement
from forebay_operator.failures import Failure
from forebay_operator.pod_views import PodView
from forebay_operator.scraped import Measured

WEIGHTS_TOLERANCE_PERCENT = 2
"""So far may measured and planned weights be apart."""

Deviation = Literal["WeightsDiffer", "KVCacheDiffers", "ActivationsExceedPlan"]


def plan_verified(
    plan: Mapping[str, Any], pods: Sequence[PodView], shortage: Failure | None, before: Mapping[str, Any] | None
) -> Statement:
    """What the pods of one revision say of its plan.

    Args:
        plan: as it stands in `status.plan`.
        pods: of the observed revision only.
        shortage: how the engine refused to start because it found less room than was planned.
        before: the condition as it was last written about this same revision. A verdict outlives the pods that it came
            from: neither scaling to zero nor a pod that does not answer makes it unknown again.
    """
    reports = [
        (pod.name, pod.scraped.measured)
        for pod in sorted(pods, key=lambda pod: pod.name)
        if pod.scraped is not None and pod.scraped.measured is not None
    ]
    for name, measured in reports:
        if reason := deviation(plan, measured):
            return Statement("PlanVerified", "False", reason, f"{name}: {_numbers(plan, measured)}")
    if reports:
        return Statement("PlanVerified", "True", "AsPlanned", _numbers(plan, reports[0][1]))
    if shortage is not None:
        return Statement("PlanVerified", "False", shortage.reason, shortage.message)
    if before is not None and before["status"] != "Unknown":
        return Statement("PlanVerified", before["status"], before["reason"], before["message"])
    return Statement("PlanVerified", "Unknown", "NotMeasured", "no engine of this revision has measured anything yet")


def deviation(plan: Mapping[str, Any], measured: Measured) -> Deviation | None:
    """Which of the plan's numbers the engine contradicts; what it did not say contradicts nothing."""
    weights = measured.weight_bytes
    planned = int(plan["weightBytesPerGPU"])
    if weights is not None and abs(weights - planned) * 100 > planned * WEIGHTS_TOLERANCE_PERCENT:
        return "WeightsDiffer"
    if any(said is not None and said != plan[name] for name, said in _kv(measured).items()):
        return "KVCacheDiffers"
    peak, memory = measured.activation_peak_bytes, plan.get("memory")
    if peak is not None and memory is not None and peak > _planned_step(memory) + int(memory["marginBytes"]):
        return "ActivationsExceedPlan"
    return None


def _planned_step(memory: Mapping[str, Any]) -> int:
    """What the largest step may take: activations, and scores of the rows that are sampled."""
    return int(memory["activationsBytes"]) + int(memory["logitsBytes"])


def _kv(measured: Measured) -> dict[str, int | None]:
    """What was measured of the KV cache, by the plan's names; an engine speaks of one accelerator."""
    return {"kvCacheTokens": measured.kv_cache_tokens, "kvBytesPerTokenPerGPU": measured.kv_bytes_per_token}


def _numbers(plan: Mapping[str, Any], measured: Measured) -> str:
    planned = {"weightBytesPerGPU": measured.weight_bytes, **_kv(measured)}
    words = {
        "weightBytesPerGPU": "weight bytes",
        "kvCacheTokens": "KV cache tokens",
        "kvBytesPerTokenPerGPU": "KV bytes per token",
    }
    parts = [
        f"{said:,} {words[name]} measured, {int(plan[name]):,} planned"
        for name, said in planned.items()
        if said is not None
    ]
    memory = plan.get("memory")
    if measured.activation_peak_bytes is not None and memory is not None:
        peak, step = measured.activation_peak_bytes, _planned_step(memory)
        parts.append(f"{peak:,} bytes for the largest step measured, {step:,} planned")
    if measured.free_bytes is not None:
        parts.append(f"{measured.free_bytes:,} bytes were free before the start")
    return "; ".join(parts)
