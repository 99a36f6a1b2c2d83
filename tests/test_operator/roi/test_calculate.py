"""GPUs, cost and saving: by hand, at the edges, and as properties over any situation."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_operator.roi.calculate import Result, calculate
from forebay_operator.roi.inputs import MAX_REQUESTS_PER_DAY, InputError, Inputs
from forebay_operator.roi.steps import OPTIMIZATIONS
from tests.test_operator.planner.questions import LLAMA_8B
from tests.test_operator.roi.situations import MACHINES, machine, plain_variant

machines = st.sampled_from(MACHINES).map(lambda pair: machine(*pair))
inputs_of_any_size = st.builds(
    Inputs,
    requests_per_day=st.floats(0, 1e12) | st.integers(0, 10**8),
    prompt_tokens=st.integers(1, 6000),
    output_tokens=st.integers(1, 2000),
    utilization=st.floats(1, 100),
    price=st.floats(0, 1000),
    gpus=st.none() | st.integers(1, 10**6),
    target_utilization=st.floats(1, 100),
    prefix_hit=st.floats(0, 99),
    acceptance=st.floats(0, 99),
)


def costs(result: Result) -> list[float]:
    return [row.cost for row in result.rows]


def test_the_order_is_the_recommended_one() -> None:
    rows = calculate(Inputs(), machine(LLAMA_8B, "h100-80gb")).rows
    assert [row.name for row in rows] == [
        "Today",
        "Continuous batching",
        "Flash attention",
        "FP8 weights",
        "Paged KV cache",
        "INT8 or 4-bit weights",
        "Prefix caching",
        "Speculative decoding",
    ]


def test_a_situation_worked_out_by_hand() -> None:
    """10,000 requests of 10.006 s at 20 % of a day: 5.8 GPUs. In batches of 15, 0.6675 s at 60 %: 0.13 GPUs."""
    inputs = Inputs(requests_per_day=10_000, prompt_tokens=10, output_tokens=10, utilization=20, price=2)
    result = calculate(inputs, [plain_variant()])
    today, batching = result.rows[:2]
    assert (today.gpus, today.cost) == (6, 6 * 2 * 730)
    assert today.cost_per_million_tokens == pytest.approx(6 * 2 * 730 / (10_000 * 730 / 24 * 10) * 1e6)
    assert (batching.gpus, batching.cost, batching.saving) == (1, 1460, 5 * 1460)
    assert batching.batch == 15
    assert batching.factor == pytest.approx(10.00552 / (10 * 1.0005 / 15 + 0.00052), rel=1e-6)


def test_todays_bill_is_what_is_paid_and_todays_speed_what_is_served() -> None:
    """864,000 requests of 10 tokens are 100 tokens/s; 50 GPUs at 20 % are ten that always work: 10 tokens/s each."""
    inputs = Inputs(requests_per_day=864_000, prompt_tokens=10, output_tokens=10, utilization=20, gpus=50, price=1)
    result = calculate(inputs, [plain_variant()])
    assert result.rows[0].cost == 50 * 730
    assert result.rows[0].cost_per_million_tokens == pytest.approx(50 * 730 / (864_000 * 730 / 24 * 10) * 1e6)
    assert result.rows[0].tokens_per_second == pytest.approx(10)
    assert result.rows[1].factor == pytest.approx(result.rows[1].tokens_per_second / 10)
    assert result.speed_one_at_a_time == pytest.approx(1, rel=0.01)


def test_gpus_that_already_give_more_than_batching_alone_are_said_to() -> None:
    inputs = Inputs(requests_per_day=864_000, prompt_tokens=10, output_tokens=10, utilization=20, gpus=10, price=1)
    assert calculate(inputs, [plain_variant()]).rows[1].verdict == "in use"


def test_what_does_not_help_is_left_out() -> None:
    """4-bit numbers are multiplied in 16 bits on an H100, at half the speed of fp8."""
    rows = {row.key: row for row in calculate(Inputs(), machine(LLAMA_8B, "h100-80gb")).rows}
    assert rows["int8OrInt4"].verdict == "no gain"
    assert rows["int8OrInt4"].factor <= 1
    assert rows["int8OrInt4"].format == rows["prefixCaching"].format == "fp8"


def test_integers_win_where_fp8_is_only_stored() -> None:
    rows = {row.key: row for row in calculate(Inputs(), machine("meta-llama/Llama-3.3-70B-Instruct", "a100-80gb")).rows}
    assert (rows["int8OrInt4"].verdict, rows["int8OrInt4"].format) == ("applied", "int8")


def test_a_small_load_takes_the_smallest_replica_although_a_larger_one_is_more_efficient() -> None:
    """Two GPUs that are three times as fast as one are not worth their price for one request a day."""
    large = plain_variant(gpus=2, tensor=2, weight_bytes=10**9 // 3)
    for requests, gpus in ((1, 1), (100_000, 2)):
        inputs = Inputs(requests_per_day=requests, prompt_tokens=10, output_tokens=10)
        assert calculate(inputs, [plain_variant(), large]).rows[1].gpus_per_replica == gpus


def test_smaller_weights_that_need_fewer_gpus_are_used_for_a_small_load_although_they_are_slower() -> None:
    two = plain_variant(gpus=2, tensor=2, weight_bytes=10**9 // 4)
    small = plain_variant(format="int4")
    rows = calculate(Inputs(requests_per_day=1, prompt_tokens=10, output_tokens=10), [two, small]).rows
    assert (rows[5].key, rows[5].verdict, rows[5].gpus, rows[4].gpus) == ("int8OrInt4", "applied", 1, 2)
    assert rows[5].factor < 1


def test_what_helps_only_together_with_a_later_step_says_so() -> None:
    """int8 with slow arithmetic: the long prompts decide, until nearly all of them is in the prefix cache."""
    base = plain_variant(active_parameters=10**9)
    small = plain_variant(format="int8", active_parameters=10**9, flops_per_second=3e11, weight_bytes=10**8)
    inputs = Inputs(requests_per_day=10**6, prompt_tokens=900, output_tokens=3, prefix_hit=99)
    rows = {row.key: row for row in calculate(inputs, [base, small]).rows}
    assert rows["int8OrInt4"].verdict == "later"
    assert (rows["pagedKV"].format, rows["int8OrInt4"].format, rows["prefixCaching"].format) == ("bf16", "bf16", "int8")


@pytest.mark.parametrize(
    ("pair", "key"),
    [((LLAMA_8B, "t4-16gb"), "fp8"), (("deepseek-ai/DeepSeek-V3", "b200-180gb"), "int8OrInt4")],
)
def test_what_the_hardware_or_the_checkpoint_excludes_is_not_available(pair: tuple[str, str], key: str) -> None:
    rows = {row.key: row for row in calculate(Inputs(), machine(*pair)).rows}
    assert rows[key].verdict == "not available"


def test_without_requests_one_replica_stays_and_tokens_have_no_price() -> None:
    result = calculate(Inputs(requests_per_day=0), machine(LLAMA_8B, "h100-80gb"))
    for row in result.rows:
        assert row.gpus == row.gpus_per_replica
        assert row.cost_per_million_tokens is None


def test_huge_numbers_stay_numbers() -> None:
    inputs = Inputs(requests_per_day=MAX_REQUESTS_PER_DAY, price=1e6, prompt_tokens=6000, output_tokens=2000)
    for row in calculate(inputs, machine(LLAMA_8B, "h100-80gb")).rows:
        assert all(math.isfinite(value) for value in (row.cost, row.saving, row.factor, row.tokens_per_second))
        assert row.gpus > 1_000_000


def test_a_load_that_exactly_fills_the_gpus_needs_no_further_one() -> None:
    """Rounding in the last digit is not another GPU."""
    variant = plain_variant()
    inputs = Inputs(prompt_tokens=10, output_tokens=10, utilization=100)
    per_gpu = 86_400 / 10.00552
    for count in (1, 3, 7, 11, 49):
        exact = calculate(replace(inputs, requests_per_day=count * per_gpu), [variant])
        assert exact.rows[0].gpus == count


def test_without_a_variant_there_is_nothing_to_calculate() -> None:
    with pytest.raises(ValueError, match="nothing fits"):
        calculate(Inputs(), [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests_per_day", -1),
        ("requests_per_day", math.nan),
        ("requests_per_day", math.inf),
        ("requests_per_day", 1e16),
        ("prompt_tokens", 0),
        ("output_tokens", 0),
        ("utilization", 0),
        ("utilization", 101),
        ("price", -0.01),
        ("gpus", 0),
        ("target_utilization", 0.5),
        ("prefix_hit", 100),
        ("acceptance", -1),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    flag = {"price": "--gpu-price"}.get(field, f"--{field.replace('_', '-')}")
    with pytest.raises(InputError, match=f"^{flag}: must be from"):
        replace(Inputs(), **{field: value})  # type: ignore[arg-type]


@given(inputs_of_any_size, machines, st.floats(0, 99))
def test_more_utilization_never_costs_more(inputs: Inputs, variants: tuple, more: float) -> None:  # type: ignore[type-arg]
    before = costs(calculate(inputs, variants))
    now = replace(inputs, utilization=min(100, inputs.utilization + more))
    then = replace(inputs, target_utilization=min(100, inputs.target_utilization + more))
    for changed in (now, then):
        assert all(after <= cost for after, cost in zip(costs(calculate(changed, variants)), before, strict=True))


@given(inputs_of_any_size, machines, st.floats(1, 1000))
def test_more_requests_never_cost_less(inputs: Inputs, variants: tuple, factor: float) -> None:  # type: ignore[type-arg]
    more = replace(inputs, requests_per_day=inputs.requests_per_day * factor)
    pairs = zip(costs(calculate(more, variants)), costs(calculate(inputs, variants)), strict=True)
    assert all(after >= before for after, before in pairs)


@given(inputs_of_any_size, machines)
def test_each_further_optimization_never_costs_more(inputs: Inputs, variants: tuple) -> None:  # type: ignore[type-arg]
    after = costs(calculate(inputs, variants))[1:]
    assert after == sorted(after, reverse=True)


@given(inputs_of_any_size, machines, st.floats(0, 99))
def test_more_hits_and_better_guesses_never_cost_more(inputs: Inputs, variants: tuple, more: float) -> None:  # type: ignore[type-arg]
    better = replace(inputs, prefix_hit=min(99, inputs.prefix_hit + more), acceptance=min(99, inputs.acceptance + more))
    pairs = zip(costs(calculate(better, variants)), costs(calculate(inputs, variants)), strict=True)
    assert all(after <= before for after, before in pairs)


@given(inputs_of_any_size, machines)
def test_rows_agree_with_themselves(inputs: Inputs, variants: tuple) -> None:  # type: ignore[type-arg]
    result = calculate(inputs, variants)
    assert len(result.rows) == 1 + len(OPTIMIZATIONS)
    for row in result.rows:
        assert row.saving == result.rows[0].cost - row.cost
        assert row.cost == row.gpus * inputs.price * 730
    for row in result.rows[1:]:
        assert row.gpus % row.gpus_per_replica == 0
        # the GPUs that are planned for serve the load within the utilization
        served = row.gpus * row.tokens_per_second * max(inputs.utilization, inputs.target_utilization) / 100
        assert served >= inputs.requests_per_day * inputs.output_tokens / 86_400 * (1 - 1e-6)
