"""Speeds agree with the planner's own estimate, and each switch acts on its own part."""

from dataclasses import replace

import pytest

from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.planner import KVBudget, Plan, PlanRequest
from forebay_operator.planner.plan import plan
from forebay_operator.roi.inputs import Inputs
from forebay_operator.roi.throughput import Serving, batch_size, request_seconds, tokens_per_step
from tests.test_operator.planner.questions import facts_of
from tests.test_operator.roi.situations import MACHINES, machine, plain_variant

INPUTS = Inputs()  # 1024 and 256 tokens, as the planner's estimate has it
ALONE = Serving(fused=True)
BATCHED = Serving(batched=True, fused=True, paged=True)


@pytest.mark.parametrize(("model", "accelerator"), MACHINES)
def test_speeds_are_those_of_the_planners_estimate(model: str, accelerator: str) -> None:
    base = PlanRequest(
        facts=facts_of(model),
        accelerator=accelerators()[accelerator],
        kv_budget=KVBudget("percent", 100),
        max_model_len=8192,
    )
    for variant in machine(model, accelerator):
        is_checkpoints_own = variant.format not in ("bf16", "fp16", "fp8", "int8", "int4")
        weights = "auto" if is_checkpoints_own else variant.format
        answer = plan(replace(base, tensor=variant.tensor, weights=weights))  # type: ignore[arg-type]
        assert isinstance(answer, Plan)
        estimate = answer.estimate
        same_batch = replace(variant, max_num_seqs=estimate.batch, kv_tokens=10**9)
        assert batch_size(same_batch, BATCHED, INPUTS) == estimate.batch
        assert round(256 / request_seconds(same_batch, BATCHED, INPUTS)) == estimate.output_tokens_per_second
        assert round(256 / request_seconds(variant, ALONE, INPUTS)) == estimate.naive_output_tokens_per_second


def test_one_request_takes_its_prompt_and_a_step_a_token() -> None:
    """2 x 10^6 x 10 operations are 20 us; ten steps of one second; half a millisecond with each of the eleven."""
    inputs = Inputs(prompt_tokens=10, output_tokens=10)
    assert request_seconds(plain_variant(), ALONE, inputs) == pytest.approx(20e-6 + 10 + 11 * 0.5e-3, abs=1e-9)


@pytest.mark.parametrize(
    ("serving", "batch"),
    [
        (Serving(), 1),
        (Serving(paged=True), 1),
        (Serving(batched=True), 15),  # 30 % of 1000 tokens in sequences of 20
        (Serving(batched=True, paged=True), 48),
    ],
)
def test_the_batch_is_what_the_cache_holds(serving: Serving, batch: int) -> None:
    assert batch_size(plain_variant(), serving, Inputs(prompt_tokens=10, output_tokens=10)) == batch


def test_the_batch_is_never_more_than_the_engine_takes_and_never_nothing() -> None:
    serving = Serving(batched=True, paged=True)
    assert batch_size(plain_variant(max_num_seqs=7), serving, Inputs(prompt_tokens=10, output_tokens=10)) == 7
    assert batch_size(plain_variant(kv_tokens=16), serving, Inputs(prompt_tokens=900, output_tokens=90)) == 1


def test_unfused_attention_costs_the_square_of_the_prompt() -> None:
    variant = plain_variant(score_bytes=1000.0)
    extra = [
        request_seconds(variant, Serving(), inputs) - request_seconds(variant, Serving(fused=True), inputs)
        for inputs in (Inputs(prompt_tokens=1000), Inputs(prompt_tokens=2000))
    ]
    assert extra == pytest.approx([1.0, 4.0])


def test_the_prefix_cache_saves_its_share_of_the_prompt_and_nothing_of_the_answer() -> None:
    variant = plain_variant(active_parameters=10**9)
    inputs = Inputs(prompt_tokens=1000, output_tokens=1, prefix_hit=40)
    full = request_seconds(variant, ALONE, inputs)
    assert full - request_seconds(variant, replace(ALONE, prefix=True), inputs) == pytest.approx(0.4 * 2.0)


@pytest.mark.parametrize(("acceptance", "tokens"), [(0.0, 1.0), (0.5, 1.875), (0.6, 2.176), (0.99, 3.940399)])
def test_a_step_with_three_drafts_yields_a_geometric_sum(acceptance: float, tokens: float) -> None:
    assert tokens_per_step(acceptance) == pytest.approx(tokens)


def test_speculation_costs_where_arithmetic_is_the_limit() -> None:
    serving = replace(ALONE, speculative=True)
    inputs = Inputs(prompt_tokens=1, output_tokens=100)
    by_memory, by_arithmetic = plain_variant(), plain_variant(active_parameters=10**12, weight_bytes=1)
    assert request_seconds(by_memory, serving, inputs) < 0.6 * request_seconds(by_memory, ALONE, inputs)
    assert request_seconds(by_arithmetic, serving, inputs) > 1.5 * request_seconds(by_arithmetic, ALONE, inputs)
