"""Estimates follow the roofline, and keep the order that physics gives."""

from typing import Any

import pytest

from forebay_operator.planner import Plan
from tests.test_operator.planner.questions import LLAMA_8B, LLAMA_70B, planned, question


def plan_on(accelerator: str, **changes: Any) -> Plan:
    return planned(question(LLAMA_8B, accelerator, 16, max_model_len=4096, max_num_seqs=64, **changes))


def test_one_sequence_is_bound_by_reading_the_weights() -> None:
    """8B in bf16 on an H100: 16.06 GB at 70 % of 3.35 TB/s are 6.8 ms, and half a millisecond of overhead."""
    plan = planned(question(LLAMA_8B, "h100-80gb", max_model_len=4096, max_num_seqs=1))
    assert plan.estimate.batch == 1
    per_token_ms = 1000 / plan.estimate.output_tokens_per_second
    assert per_token_ms == pytest.approx(6.85 + 0.5, rel=0.1)


def test_prefill_is_bound_by_arithmetic() -> None:
    """2 x 7.5 billion x 1024 operations at half of 989 TFLOPS are 31 ms."""
    assert plan_on("h100-80gb").estimate.time_to_first_token_ms == pytest.approx(31, rel=0.1)


def test_batching_is_worth_a_factor_and_costs_less() -> None:
    estimate = plan_on("h100-80gb").estimate
    assert estimate.output_tokens_per_second > 8 * estimate.naive_output_tokens_per_second
    assert estimate.cost_per_million_tokens_cents[1] < estimate.naive_cost_per_million_tokens_cents[1] / 8


def test_faster_memory_gives_more_tokens() -> None:
    speeds = [
        plan_on(name).estimate.output_tokens_per_second for name in ("l4-24gb", "a100-80gb", "h100-80gb", "h200-141gb")
    ]
    assert speeds == sorted(speeds)


def test_fp8_is_faster_where_it_is_native() -> None:
    assert (
        plan_on("h100-80gb", weights="fp8").estimate.output_tokens_per_second
        > 1.2 * plan_on("h100-80gb", weights="bf16").estimate.output_tokens_per_second
    )


def test_a_link_that_is_slow_costs_time() -> None:
    sxm = planned(question(LLAMA_70B, "a100-80gb", 4, tensor=4, max_model_len=4096)).estimate
    pcie = planned(question(LLAMA_70B, "a100-pcie-80gb", 4, tensor=4, max_model_len=4096)).estimate
    assert pcie.inter_token_latency_us > sxm.inter_token_latency_us


def test_experts_that_no_token_chose_are_not_read() -> None:
    """30B with 3B active decodes one sequence faster than a dense 8B, although it is four times as large."""
    sparse = planned(question("Qwen/Qwen3-30B-A3B", "h100-80gb", max_model_len=4096, max_num_seqs=1)).estimate
    dense = planned(question(LLAMA_8B, "h100-80gb", max_model_len=4096, max_num_seqs=1)).estimate
    assert sparse.output_tokens_per_second > dense.output_tokens_per_second


def test_every_estimate_says_what_it_assumes() -> None:
    assumptions = plan_on("h100-80gb").estimate.assumptions
    for word in ("not measured", "70% of bandwidth", "50% of peak", "60% utilization", "1.90-7.00 USD"):
        assert word in assumptions


def test_costs_follow_from_price_and_throughput() -> None:
    estimate = plan_on("h100-80gb").estimate
    tokens_an_hour = estimate.output_tokens_per_second * 3600 * 0.6
    assert estimate.cost_per_million_tokens_cents[1] == pytest.approx(700 * 1e6 / tokens_an_hour, rel=0.01)
