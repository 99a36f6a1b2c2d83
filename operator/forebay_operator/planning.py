"""From a spec, the model's facts and the accelerator to the planner's question, and to the revision's hash. Pure."""

from typing import Any, cast

from forebay_operator.api.common import quantity_value
from forebay_operator.api.inference_service import InferenceServiceSpec, Quantization
from forebay_operator.api.inference_service import KVBudget as KVBudgetSpec
from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.children import digest
from forebay_operator.facts import ModelFacts
from forebay_operator.planner import KVBudget, PlanRequest
from forebay_operator.planner.request import KVFormat

_NOT_RENDERED = {"replicas", "suspend", "scaling", "rollout"}
"""Fields of the spec that change no pod."""


def plan_request(spec: InferenceServiceSpec, facts: ModelFacts, accelerator: AcceleratorProfile) -> PlanRequest:
    """The planner's question.

    Raises:
        RequestError: the values make no sense together.
    """
    formats = spec.quantization or Quantization()
    engine = spec.engine
    memory = spec.memory
    return PlanRequest(
        facts=facts,
        accelerator=accelerator,
        kv_budget=_budget(spec.kv_budget),
        tensor=spec.parallelism.tensor if spec.parallelism else "auto",
        pipeline=_pipeline(spec),
        weights=formats.weights,
        allowed=formats.allowed,
        floor=formats.floor,
        kv_cache_dtype=cast("KVFormat", formats.kv_cache),
        max_model_len=spec.context.max_model_len if spec.context else None,
        max_num_seqs=(engine and engine.max_num_seqs) or "auto",
        max_num_batched_tokens=(engine and engine.max_num_batched_tokens) or "auto",
        memory_bytes=int(quantity_value(memory)) if memory is not None else None,
    )


def _pipeline(spec: InferenceServiceSpec) -> int:
    """One stage unless more are asked for: a pod runs on one node, and within it tensor parallelism is faster."""
    wish = spec.parallelism.pipeline if spec.parallelism else "auto"
    return 1 if wish == "auto" else wish


def _budget(spec: KVBudgetSpec | None) -> KVBudget:
    if spec is None:
        return KVBudget("percent", 100)
    if spec.concurrent_sequences is not None:
        return KVBudget("sequences", spec.concurrent_sequences)
    if spec.tokens is not None:
        return KVBudget("tokens", spec.tokens)
    if spec.memory is not None:
        return KVBudget("bytes", int(quantity_value(spec.memory)))
    return KVBudget("percent", spec.memory_percent or 100)


def revision_of(spec: InferenceServiceSpec, profile_identity: Any, restarted_at: str | None) -> str:
    """The hash of everything a pod template is made from.

    Neither the operator's version nor its default image is part of it, so that an upgrade restarts nothing; fields
    at their defaults are left out, so that a new field of a later version changes no hash.
    """
    return digest(
        {
            "spec": rendered_part(spec),
            "profile": profile_identity,
            "restartedAt": restarted_at,
        }
    )


def rendered_part(spec: InferenceServiceSpec) -> Any:
    """What of a spec changes pods, without what is left at its default."""
    return _said(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_NOT_RENDERED))


def _said(value: Any) -> Any:
    """Without objects that say nothing: `quantization: {}` is the same as no quantization."""
    if not isinstance(value, dict):
        return value
    kept = {key: _said(item) for key, item in value.items()}
    return {key: item for key, item in kept.items() if item != {}}
