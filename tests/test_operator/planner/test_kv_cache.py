"""Bytes of the KV cache: formats, windows, latents, and every form of a budget."""

import pytest

from forebay_operator.planner import KVBudget
from forebay_operator.planner.kv_cache import kv_bytes_per_token, kv_cache_shape
from tests.test_operator.planner.questions import LLAMA_8B, LLAMA_70B, facts_of, llama_facts, planned, question


def test_one_sequence_of_70b_is_the_number_everybody_knows() -> None:
    assert kv_bytes_per_token(facts_of(LLAMA_70B), "bf16") * 131_072 == 42_949_672_960


@pytest.mark.parametrize(("kv_format", "expected"), [("bf16", 4096), ("fp16", 4096), ("float32", 8192)])
def test_bytes_follow_the_format(kv_format: str, expected: int) -> None:
    assert kv_bytes_per_token(llama_facts(), kv_format) == expected


@pytest.mark.parametrize("kv_format", ["int8", "fp8"])
def test_eight_bits_carry_a_scale_for_each_token_and_head(kv_format: str) -> None:
    assert kv_bytes_per_token(llama_facts(), kv_format) == 2 * 4 * 4 * (64 + 4)


def test_latents_are_whole_on_every_rank() -> None:
    facts = facts_of("deepseek-ai/DeepSeek-V3")
    shapes = [
        kv_cache_shape(
            facts, "bf16", tensor=tensor, pipeline=1, max_model_len=1024, max_num_batched_tokens=1, block_size=16
        )
        for tensor in (1, 8)
    ]
    assert shapes[0].full_bytes_per_token == shapes[1].full_bytes_per_token == 61 * 576 * 2


def test_layers_with_a_window_are_bounded() -> None:
    """Gemma 3 1B: 22 of 26 layers keep 512 tokens; 4 sequences of 32,768."""
    plan = planned(question("google/gemma-3-1b-it", "l4-24gb", 4, max_num_batched_tokens=2048))
    per_layer = 2 * 1 * 256 * 2
    full, sliding = 4 * 4 * 32768 * per_layer, 22 * (4 * (512 + 16) + 2048) * per_layer
    assert plan.memory.kv_cache == full + sliding
    assert any("22 layers keep only the last 512 tokens" in line for line in plan.explanation)


def test_a_window_never_costs_more_than_the_whole_context() -> None:
    plan = planned(question("google/gemma-3-1b-it", "l4-24gb", 4, max_model_len=256))
    assert plan.memory.kv_cache == 4 * 256 * plan.kv_bytes_per_token


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert [kind.kind for kind in llama_facts(model_type="mistral", sliding_window=4096).kv_layers] == ["full"]


def test_sequences_are_whole_blocks() -> None:
    plan = planned(question(LLAMA_8B, "h100-80gb", 3, max_model_len=1000))
    assert (plan.num_blocks, plan.kv_cache_tokens) == (3 * 63, 3 * 63 * 16)


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [
        (KVBudget("tokens", 10_001), 10_016),
        (KVBudget("bytes", 131_072 * 10_000), 10_000),
        (KVBudget("bytes", 131_072 * 10_000 + 15), 10_000),
        (KVBudget("sequences", 5), 5 * 2048),
    ],
)
def test_every_budget_becomes_one_number_of_tokens(budget: KVBudget, tokens: int) -> None:
    assert planned(question(LLAMA_8B, "h100-80gb", kv_budget=budget, max_model_len=2048)).kv_cache_tokens == tokens


def test_bytes_are_those_of_all_ranks() -> None:
    budget = KVBudget("bytes", 131_072 * 10_000)
    plan = planned(question(LLAMA_8B, "h100-80gb", kv_budget=budget, max_model_len=2048, tensor=4))
    assert plan.kv_cache_tokens == 10_000
    assert plan.memory.kv_cache == budget.amount // 4


@pytest.mark.parametrize("accelerator", ["h100-80gb", "cpu"])
def test_a_percentage_is_of_what_is_left(accelerator: str) -> None:
    memory = 4 << 30 if accelerator == "cpu" else None
    facts = facts_of("HuggingFaceTB/SmolLM2-135M-Instruct")

    def tokens(percent: int) -> int:
        wish = question(facts, accelerator, kv_budget=KVBudget("percent", percent), memory_bytes=memory)
        plan = planned(wish)
        assert plan.memory.headroom >= 0
        return plan.kv_cache_tokens

    assert tokens(50) == pytest.approx(tokens(100) / 2, rel=0.06)
    full = planned(question(facts, accelerator, kv_budget=KVBudget("percent", 100), memory_bytes=memory))
    assert full.memory.headroom < 16 * full.kv_bytes_per_token * 2  # nothing is given away
