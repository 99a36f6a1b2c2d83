"""Bytes of weights by format and rank, and the borders that tensor parallelism may not cut."""

from typing import Any

import pytest

from forebay_operator.facts.inspect_model import facts_of_config
from forebay_operator.planner.formats import WeightScheme, load_time_scheme
from forebay_operator.planner.weights import split_problem, weight_bytes_per_rank
from tests.test_operator.planner.questions import LLAMA_70B, facts_of, llama_facts, planned, question, refused

BF16 = load_time_scheme("bf16")
GPTQ = WeightScheme("gptq", 4, 64, from_checkpoint=True)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (load_time_scheme("float32"), 4 * 256 * 512),
        (load_time_scheme("bf16"), 2 * 256 * 512),
        (load_time_scheme("fp8"), 256 * 512 + 4 * 256),
        (load_time_scheme("int8"), 256 * 512 + 4 * 256),
        (load_time_scheme("int4"), 256 * 512 // 2 + 2 * 256 * 16),
        (WeightScheme("fp8-block", 8, block=128), 256 * 512 + 4 * 2 * 4),
        (WeightScheme("gptq", 4, 128, zero_points=True, from_checkpoint=True), 256 * 256 + 256 * 4 * 3),
        (WeightScheme("gptq", 4, 128, act_order=True, from_checkpoint=True), 256 * 256 + 256 * 4 * 2 + 4 * 512),
        (WeightScheme("gptq", 8, -1, from_checkpoint=True), 256 * 512 + 256 * 4),
        (WeightScheme("awq", 4, 64, zero_points=True, from_checkpoint=True), 256 * 256 + 256 * 8 * 3),
        (WeightScheme("gguf", 4, from_checkpoint=True, gguf_numbers=1000, gguf_bytes=625), 256 * 512 * 5 // 8),
        (WeightScheme("mxfp4", 4, 32), 256 * 256 + 256 * 16),
        (WeightScheme("nvfp4", 4, 16), 256 * 256 + 256 * 32),
    ],
)
def test_scales_and_zero_points_are_counted(scheme: WeightScheme, expected: int) -> None:
    assert scheme.matrix_bytes(256, 512) == expected


def test_a_tied_head_is_stored_once() -> None:
    untied, tied = llama_facts(), llama_facts(tie_word_embeddings=True)
    difference = weight_bytes_per_rank(untied, BF16, 2, 1, 1) - weight_bytes_per_rank(tied, BF16, 2, 1, 1)
    assert difference == 32000 * 512 * 2


def test_ranks_together_hold_the_weights_once_and_the_norms_each() -> None:
    facts = facts_of(LLAMA_70B)
    whole, part = weight_bytes_per_rank(facts, BF16, 2, 1, 1), weight_bytes_per_rank(facts, BF16, 2, 8, 1)
    norms = 2 * (2 * 80 + 1) * 8192
    assert 8 * part - whole == 7 * norms


def test_the_vocabulary_is_padded_to_equal_parts() -> None:
    facts = llama_facts(vocab_size=32001)
    part = weight_bytes_per_rank(facts, BF16, 2, 2, 1) - weight_bytes_per_rank(
        llama_facts(vocab_size=32000), BF16, 2, 2, 1
    )
    assert part == 2 * 512 * 2  # one more row of the embedding and of the head


def test_repeated_kv_heads_are_counted_on_every_rank() -> None:
    one_each = llama_facts(num_key_value_heads=8)
    repeated = llama_facts(num_key_value_heads=4)
    assert weight_bytes_per_rank(one_each, BF16, 2, 8, 1) == weight_bytes_per_rank(repeated, BF16, 2, 8, 1)


def test_groups_in_another_order_cannot_be_divided_by_columns() -> None:
    facts = llama_facts()
    ordered = WeightScheme("gptq", 4, 64, act_order=True, from_checkpoint=True)
    difference = weight_bytes_per_rank(facts, ordered, 2, 2, 1) - weight_bytes_per_rank(facts, GPTQ, 2, 2, 1)
    output, down = (facts.num_layers * 512 * columns // 2 for columns in (512, facts.intermediate_size))
    plain, packed = 2 * (output + down), (output + down) // 2 + 2 * (output + down) // 64
    orders = facts.num_layers * 4 * 512 * 5  # of what is divided by rows: q, k, v, gate and up
    assert difference == plain - packed + orders


def test_the_fullest_stage_of_a_pipeline_counts() -> None:
    facts = llama_facts(num_hidden_layers=5)
    whole, stage = weight_bytes_per_rank(facts, BF16, 2, 1, 1), weight_bytes_per_rank(facts, BF16, 2, 1, 2)
    ends = 2 * (32000 * 512)
    layers = whole - 2 * ends - 2 * 512
    assert stage == layers // 5 * 3 + ends + 2 * 512  # three layers, and the head with the last norm


@pytest.mark.parametrize(
    ("changes", "tensor", "words"),
    [
        ({}, 3, ("8 attention heads", "tensor parallel size 3")),
        ({"num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 64}, 4, ("6 KV heads", "size 4")),
        ({"intermediate_size": 1026}, 4, ("gate_up_proj", "1026", "size 4")),
    ],
)
def test_what_cannot_be_divided_is_named_with_both_numbers(
    changes: dict[str, Any], tensor: int, words: tuple[str, ...]
) -> None:
    problem = split_problem(llama_facts(**changes), BF16, tensor)
    assert problem is not None
    for word in words:
        assert word in problem


def test_fp8_blocks_are_not_cut_and_the_layer_is_named() -> None:
    """Experts of 768 with blocks of 128: two ranks have 384 each (three blocks), four would have one and a half."""
    config = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    facts = facts_of_config(config, "config.json")
    assert planned(question(facts, "h100-80gb", tensor=2)).weights == "fp8-block"
    refusal = refused(question(facts, "h100-80gb", tensor=4))
    assert refusal.reason == "TensorParallelism"
    assert "experts.gate_up_proj: 768 rows over 4 ranks are 192 each" in refusal.message


def test_another_size_is_chosen_when_a_group_would_be_cut() -> None:
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    facts = llama_facts(intermediate_size=1024 + 128, quantization_config=quantization)
    plan = planned(question(facts, "h100-80gb"))
    assert plan.tensor_parallel_size == 1
    assert any("cuts through gptq groups of 128" in entry.reason for entry in plan.rejected)
