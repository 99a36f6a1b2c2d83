"""Estimates: latency, throughput and cost from the roofline; what they assume stands beside them.

A decode step reads the weights once and every running sequence's cache; it takes as long as its memory traffic or its
arithmetic, whichever is longer, plus the collectives.
"""

from dataclasses import dataclass
from typing import Final

from forebay_operator.planner.attempt import Attempt
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planner.result import Estimate
from forebay_operator.planner.roofline import (
    BANDWIDTH_PERCENT,
    FLOPS_PERCENT,
    STEP_OVERHEAD_US,
    collective_us,
    reached_bytes_per_second,
    reached_flops,
    share_read,
)

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
        share = share_read(facts, batch)
        shape = self.attempt.shape
        kept = min(context, shape.window) if shape.window else context
        kv = batch * (context * shape.full_bytes_per_token + kept * shape.sliding_bytes_per_token)
        bandwidth = reached_bytes_per_second(accelerator)
        traffic = (option.weight_bytes * share + kv) / bandwidth * 1e6
        arithmetic = (
            2 * facts.num_active_parameters * batch / option.num_ranks / reached_flops(accelerator, option) * 1e6
        )
        # pipeline stages work one after the other on a batch
        return max(traffic, arithmetic) * option.pipeline + self._collectives(batch) + STEP_OVERHEAD_US

    def prefill(self, tokens: int) -> float:
        """A prompt of so many tokens, alone; attention included."""
        facts, option = self.request.facts, self.attempt.option
        attention = 2 * facts.num_layers * facts.num_heads * facts.head_dim * tokens * tokens
        flops = 2 * facts.num_active_parameters * tokens + attention
        reached = reached_flops(self.request.accelerator, option)
        return flops / option.tensor / reached * 1e6 + self._collectives(tokens) + STEP_OVERHEAD_US

    def _collectives(self, tokens: int) -> float:
        of_step, of_token = collective_us(self.request.facts, self.request.accelerator, self.attempt.option)
        return of_step + tokens * of_token


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


def _costs(low: int, high: int, tokens_per_second: float, percent: int) -> tuple[int, int]:
    """Cents for a million tokens at two prices in cents an hour."""
    per_hour = tokens_per_second * 3600 * percent / 100
    return round(low * 1e6 / per_hour), round(high * 1e6 / per_hour)
