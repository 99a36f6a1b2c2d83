"""Estimates: latency, throughput and cost from the roofline; what they assume stands beside them.

A decode step reads the weights once and every running sequence's cache; it takes as long as its memory traffic or its
arithmetic, whichever is longer, plus the collectives. Roofline: Williams, Waterman, Patterson, CACM 52(4), 2009.
"""

from dataclasses import dataclass
from typing import Final

from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner.attempt import Attempt
from forebay_operator.planner.formats import NUMBER_BYTES
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planner.result import Estimate

BANDWIDTH_PERCENT: Final = 70
"""Share of the data sheet's bandwidth that decode reaches."""
FLOPS_PERCENT: Final = 50
"""Share of the data sheet's peak that large matrix products reach."""
STEP_OVERHEAD_US: Final = 500
"""Scheduling, launches and sampling of a step."""
ALL_REDUCE_US: Final = 12
"""Latency of one small all-reduce over a fast link; without one it is three times that."""
PROMPT_TOKENS: Final = 1024
OUTPUT_TOKENS: Final = 256
UTILIZATION_PERCENT: Final = 60
"""Share of the time that a well-run replica has work at the planned batch."""
NAIVE_UTILIZATION_PERCENT: Final = 20
"""The same for a server that takes one request at a time: 15-25 %."""


@dataclass(frozen=True, slots=True)
class _Roofline:
    """Times of one replica, in microseconds."""

    request: PlanRequest
    attempt: Attempt

    def decode_step(self, batch: int, context: int) -> float:
        """One token for each of `batch` sequences of `context` tokens."""
        facts, option, accelerator = self.request.facts, self.attempt.option, self.request.accelerator
        share = _weights_touched(facts, batch)
        shape = self.attempt.shape
        kept = min(context, shape.window) if shape.window else context
        kv = batch * (context * shape.full_bytes_per_token + kept * shape.sliding_bytes_per_token)
        bandwidth = accelerator.bandwidth_bytes_per_second * BANDWIDTH_PERCENT / 100
        traffic = (option.weight_bytes * share + kv) / bandwidth * 1e6
        arithmetic = 2 * facts.num_active_parameters * batch / option.num_ranks / self._flops() * 1e6
        # pipeline stages work one after the other on a batch
        return max(traffic, arithmetic) * option.pipeline + self._collectives(batch) + STEP_OVERHEAD_US

    def prefill(self, tokens: int) -> float:
        """A prompt of so many tokens, alone; attention included."""
        facts, option = self.request.facts, self.attempt.option
        attention = 2 * facts.num_layers * facts.num_heads * facts.head_dim * tokens * tokens
        flops = 2 * facts.num_active_parameters * tokens + attention
        return flops / option.tensor / self._flops() * 1e6 + self._collectives(tokens) + STEP_OVERHEAD_US

    def _flops(self) -> float:
        peaks, scheme = self.request.accelerator.peak_flops, self.attempt.option.formats.scheme
        number_format = scheme.support_name
        if scheme.bits == 4 and self.request.accelerator.support(number_format) == "native":
            number_format = "fp4"
        peak = peaks.get(number_format) or peaks.get(self.attempt.option.dtype_format) or max(peaks.values())
        return peak * FLOPS_PERCENT / 100

    def _collectives(self, tokens: int) -> float:
        """Two all-reduces a layer of the hidden states."""
        facts, option, accelerator = self.request.facts, self.attempt.option, self.request.accelerator
        if option.tensor == 1:
            return 0.0
        slow = 1 if option.tensor <= accelerator.link_domain else 3
        num_bytes = 2 * tokens * facts.hidden_size * NUMBER_BYTES[option.dtype_format]
        return 2 * facts.num_layers * (ALL_REDUCE_US * slow + num_bytes / accelerator.link_bytes_per_second * 1e6)


def estimate(request: PlanRequest, attempt: Attempt) -> Estimate:
    """Speed and cost at the planned batch, beside those of one request at a time on the same accelerators."""
    output = max(1, min(OUTPUT_TOKENS, request.model_len // 2))
    prompt = max(1, min(PROMPT_TOKENS, request.model_len - output))
    context = prompt + output // 2
    by_cache = attempt.kv_tokens // (prompt + output)
    batch = max(1, min(by_cache, attempt.max_num_seqs))
    line = _Roofline(request, attempt)
    first = line.prefill(prompt)
    step = line.decode_step(batch, context)
    throughput = output / (first + output * step / batch) * 1e6
    naive = output / (first + output * line.decode_step(1, context)) * 1e6
    # prompts of the other sequences are computed between two tokens
    latency = step + first * batch / output
    low, high = (price * attempt.option.num_ranks for price in request.accelerator.price_cents_per_hour)
    cheap, dear = (f"{price / 100:.2f}" for price in request.accelerator.price_cents_per_hour)
    return Estimate(
        batch=batch,
        prompt_tokens=prompt,
        output_tokens=output,
        time_to_first_token_ms=max(1, round(first / 1000)),
        inter_token_latency_us=round(latency),
        output_tokens_per_second=max(1, round(throughput)),
        cost_per_million_tokens_cents=_costs(low, high, throughput, UTILIZATION_PERCENT),
        naive_output_tokens_per_second=max(1, round(naive)),
        naive_cost_per_million_tokens_cents=_costs(low, high, naive, NAIVE_UTILIZATION_PERCENT),
        assumptions=(
            f"roofline, not measured: {BANDWIDTH_PERCENT}% of bandwidth, {FLOPS_PERCENT}% of peak, "
            f"{STEP_OVERHEAD_US} us a step; {prompt} prompt and {output} output tokens, {batch} sequences at once; "
            f"the first token without waiting; cost per million output tokens at {UTILIZATION_PERCENT}% "
            f"utilization, one request at a time at {NAIVE_UTILIZATION_PERCENT}%, "
            f"{cheap}-{dear} USD for an accelerator and hour"
        ),
    )


def _weights_touched(facts: ModelFacts, batch: int) -> float:
    """Share of the weights that a step reads: with experts only those that some token of the batch chose."""
    total = touched = 0.0
    for group in facts.tensors:
        if group.name == "embed_tokens" and not facts.tied_embeddings:
            total += group.parameters  # looked up, a row a token
            continue
        share = 1.0
        if group.active is not None and group.copies:
            share = 1 - (1 - group.active / group.copies) ** batch
        total += group.parameters
        touched += group.parameters * share
    return touched / total


def _costs(low: int, high: int, tokens_per_second: float, percent: int) -> tuple[int, int]:
    """Cents for a million tokens at two prices in cents an hour."""
    per_hour = tokens_per_second * 3600 * percent / 100
    return round(low * 1e6 / per_hour), round(high * 1e6 / per_hour)
