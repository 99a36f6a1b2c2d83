"""What must hold for every model, accelerator and wish."""

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.catalogue.models import known_model_names
from forebay_operator.planner import KVBudget, Plan, PlanRequest
from forebay_operator.planner.formats import load_time_scheme
from forebay_operator.planner.kv_cache import kv_bytes_per_token
from forebay_operator.planner.plan import plan
from forebay_operator.planner.request import PRECISION
from forebay_operator.planner.search import feasible
from forebay_operator.planner.suggest import suggestions
from forebay_operator.planner.weights import weight_bytes_per_rank
from tests.test_operator.planner.questions import LLAMA_8B, LLAMA_70B, facts_of, question

MODELS = [
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "Qwen/Qwen2.5-0.5B-Instruct",
    LLAMA_8B,
    "Qwen/Qwen3-30B-A3B",
    "google/gemma-2-9b-it",
    "google/gemma-3-1b-it",
    LLAMA_70B,
    "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "openai/gpt-oss-20b",
]
GIB = 1 << 30

budgets = st.one_of(
    st.builds(KVBudget, st.just("sequences"), st.integers(1, 64)),
    st.builds(KVBudget, st.just("tokens"), st.integers(1, 300_000)),
    st.builds(KVBudget, st.just("bytes"), st.integers(1, 100 * GIB)),
    st.builds(KVBudget, st.just("percent"), st.integers(1, 100)),
)


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    facts = facts_of(draw(st.sampled_from(MODELS)))
    name = draw(st.sampled_from(sorted(accelerators())))
    changes: dict[str, Any] = {
        "kv_budget": draw(budgets),
        "max_model_len": draw(st.integers(1, facts.max_positions)),
        "tensor": draw(st.sampled_from(["auto", "auto", 1, 2, 4])),
        "weights": draw(st.sampled_from(["auto", "auto", "bf16", "fp8", "int8", "int4"])),
        "kv_cache_dtype": draw(st.sampled_from(["auto", "auto", "bf16", "fp8", "int8"])),
        "max_nodes": draw(st.integers(1, 2)),
        "memory_bytes": draw(st.integers(GIB, 160 * GIB)),
    }
    return question(facts, name, **changes)


@settings(max_examples=150, deadline=None)
@given(requests(), st.integers(1, 64 * GIB))
def test_more_memory_never_makes_a_feasible_plan_infeasible(request: PlanRequest, more: int) -> None:
    if isinstance(plan(request), Plan):
        assert isinstance(plan(replace(request, memory_bytes=request.memory + more)), Plan)


@settings(max_examples=150, deadline=None)
@given(requests())
def test_a_plan_fits_and_keeps_its_promise(request: PlanRequest) -> None:
    answer = plan(request)
    if not isinstance(answer, Plan):
        return
    assert answer.memory.headroom >= 0
    assert answer.kv_cache_tokens == answer.num_blocks * answer.block_size
    assert answer.guaranteed_sequences >= 1
    assert answer.max_num_batched_tokens >= answer.max_num_seqs
    assert answer.num_gpus <= request.node_gpus * request.max_nodes
    if request.kv_budget.kind == "sequences":
        assert answer.guaranteed_sequences == request.kv_budget.amount
    assert len(answer.to_status()["explanation"]) == len(answer.explanation)


@settings(max_examples=40, deadline=None)
@given(requests())
def test_what_a_refusal_suggests_is_feasible(request: PlanRequest) -> None:
    if not isinstance(plan(request), Plan):
        for suggestion in suggestions(request):
            assert isinstance(plan(suggestion.request), Plan), suggestion.text


@given(st.sampled_from(MODELS[:-1]), st.sampled_from([1, 2, 4, 8]))
def test_lower_precision_never_needs_more_bytes(model: str, tensor: int) -> None:
    facts = facts_of(model)
    if facts.num_heads % tensor:
        return
    ladder = sorted(PRECISION, key=lambda name: -PRECISION[name])
    weights = [
        weight_bytes_per_rank(facts, load_time_scheme(name), 4 if name == "float32" else 2, tensor, 1)
        for name in ladder
    ]
    assert weights == sorted(weights, reverse=True)
    cache = [kv_bytes_per_token(facts, name) for name in ("float32", "bf16", "fp16", "int8", "fp8")]
    assert cache == sorted(cache, reverse=True)


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_fewer_bits_never_need_more_bytes_in_any_matrix_of_64_columns_or_more(rows: int, cols: int) -> None:
    cols += 63
    sizes = [load_time_scheme(name).matrix_bytes(rows, cols) for name in ("float32", "bf16", "fp8", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)


def test_ten_thousand_plans_keep_their_promise() -> None:
    plans = 0
    for name, accelerator in itertools.product(known_model_names()[::3], accelerators()):
        facts = facts_of(name)
        for sequences, length, budget in itertools.product((1, 2, 4, 8, 16, 32), (512, 1024, 2048), (16, 64, 200)):
            wish = question(
                facts,
                accelerator,
                sequences,
                max_model_len=length,
                gpus_per_node=8,
                memory_bytes=budget * GIB,
            )
            attempt = feasible(wish)
            if attempt is not None:
                plans += 1
                assert attempt.memory.headroom >= 0
                assert attempt.guaranteed_sequences == sequences
    assert plans >= 10_000
