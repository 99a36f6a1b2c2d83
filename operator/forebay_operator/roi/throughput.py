"""Throughput: GPU time that one request takes on a variant, by the planner's roofline; `assets/roi.js` is its twin."""

from dataclasses import dataclass
from typing import Final

from forebay_operator.planner.roofline import STEP_OVERHEAD_US
from forebay_operator.roi.inputs import Inputs
from forebay_operator.roi.variant import Variant

CONTIGUOUS_SHARE: Final = 0.30
"""Share of the cache that holds tokens when each sequence reserves its greatest length in one piece. Measured:
0.20-0.38 (Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention", SOSP 2023, figure 2)."""
PAGED_SHARE: Final = 0.96
"""The same with blocks of 16 tokens: under 4 % is lost (same paper)."""
DRAFT_TOKENS: Final = 3
"""Tokens drafted for one step."""
DRAFT_COST: Final = 0.05
"""Cost of drafting one token, as a share of a step: a small draft model. Drafting from the prompt is nearly free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How requests are served: what the optimizations switch on."""

    batched: bool = False
    fused: bool = False
    """Attention does not write its scores to memory."""
    paged: bool = False
    prefix: bool = False
    speculative: bool = False


def request_seconds(variant: Variant, serving: Serving, inputs: Inputs) -> float:
    """Seconds of one replica that one request takes, when the batch is as large as the cache allows."""
    batch = batch_size(variant, serving, inputs)
    return (_prefill_us(variant, serving, inputs) + _decode_us(variant, serving, inputs, batch)) / 1e6


def batch_size(variant: Variant, serving: Serving, inputs: Inputs) -> int:
    """Sequences that are decoded at once."""
    if not serving.batched:
        return 1
    share = PAGED_SHARE if serving.paged else CONTIGUOUS_SHARE
    by_cache = int(variant.kv_tokens * share // inputs.sequence_tokens)
    return max(1, min(variant.max_num_seqs, by_cache))


def _prefill_us(variant: Variant, serving: Serving, inputs: Inputs) -> float:
    """The prompt, alone, less what the prefix cache holds."""
    prompt = inputs.prompt_tokens
    cached = prompt * inputs.prefix_hit / 100 if serving.prefix else 0.0
    pairs = prompt * prompt - cached * cached
    flops = 2 * variant.active_parameters * (prompt - cached) + variant.attention_flops * pairs
    time = flops / variant.tensor / variant.flops_per_second * 1e6
    if not serving.fused:
        time += variant.score_bytes * pairs / variant.bytes_per_second * 1e6
    return time + variant.collective_us + variant.collective_us_per_token * (prompt - cached) + STEP_OVERHEAD_US


def _decode_us(variant: Variant, serving: Serving, inputs: Inputs, batch: int) -> float:
    """The answer's tokens: one sequence's share of all its steps."""
    context = inputs.prompt_tokens + inputs.output_tokens // 2
    kept = min(context, variant.window) if variant.window else context
    cache = batch * (context * variant.kv_bytes_per_token + kept * variant.sliding_bytes_per_token)
    tokens = batch * (1 + DRAFT_TOKENS) if serving.speculative else batch
    read = sum(share * (1 - miss**tokens) for share, miss in variant.touched)
    traffic = (variant.weight_bytes * read + cache) / variant.bytes_per_second * 1e6
    arithmetic = 2 * variant.active_parameters * tokens / variant.gpus / variant.flops_per_second * 1e6
    step = max(traffic, arithmetic) * variant.pipeline
    step += variant.collective_us + variant.collective_us_per_token * tokens + STEP_OVERHEAD_US
    if serving.speculative:
        step = step * (1 + DRAFT_TOKENS * DRAFT_COST) / tokens_per_step(inputs.acceptance / 100)
    return inputs.output_tokens * step / batch


def tokens_per_step(acceptance: float) -> float:
    """Tokens that a step with drafts yields: 1 + a + a^2 + ...

    Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, equation 1.
    """
    total = power = 1.0
    for _ in range(DRAFT_TOKENS):
        power *= acceptance
        total += power
    return total
