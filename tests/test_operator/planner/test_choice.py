"""What the planner chooses, and what it says about it: the examples that the design promises."""

import pytest

from forebay_operator.facts.inspect_model import facts_of_config
from forebay_operator.planner import KVBudget
from tests.test_operator.planner.questions import LLAMA_8B, LLAMA_70B, facts_of, llama_facts, planned, question, refused


def test_70b_with_16_full_contexts_is_refused_on_eight_h100_with_the_numbers() -> None:
    refusal = refused(question(LLAMA_70B, "h100-80gb", 16, gpus_per_node=8))
    assert refusal.reason == "DoesNotFit"
    assert "327,680 B" in refusal.message
    assert "16 sequences x 131,072 tokens x 327,680 B = 687.19 GB (one sequence 42.95 GB)" in refusal.message
    assert refusal.need_bytes > refusal.have_bytes


def test_70b_on_a_node_of_four_h100_takes_all_four_in_bf16() -> None:
    plan = planned(question(LLAMA_70B, "h100-80gb", 16, gpus_per_node=4, max_model_len=8192))
    assert (plan.tensor_parallel_size, plan.weights, plan.kv_cache_dtype) == (4, "bf16", "bf16")
    assert plan.guaranteed_sequences == 16
    assert any("TP 2" in entry.option and "needs" in entry.reason for entry in plan.rejected)
    assert any(entry.option.startswith("fp8 weights") and "less precise" in entry.reason for entry in plan.rejected)


def test_70b_goes_down_to_fp8_when_the_budget_asks_for_it() -> None:
    plan = planned(question(LLAMA_70B, "h100-80gb", 20, gpus_per_node=4, max_model_len=32768))
    assert (plan.tensor_parallel_size, plan.weights, plan.quantization, plan.dtype) == (4, "fp8", "fp8", "bfloat16")
    assert any("native on h100-80gb" in line for line in plan.explanation)


def test_fp8_on_a100_is_weight_only_and_says_so() -> None:
    plan = planned(question(LLAMA_8B, "a100-80gb", weights="fp8"))
    assert plan.weights == "fp8"
    assert any("dequantized on a100-80gb" in line for line in plan.explanation)


def test_auto_never_takes_a_format_that_the_hardware_does_not_multiply() -> None:
    plan = planned(question(LLAMA_70B, "a100-80gb", 20, gpus_per_node=4, max_model_len=32768))
    assert plan.weights == "int8"
    assert any(entry.option == "fp8 weights" and "not native" in entry.reason for entry in plan.rejected)


def test_fp8_on_t4_is_refused() -> None:
    refusal = refused(question(LLAMA_8B, "t4-16gb", weights="fp8", max_model_len=4096))
    assert refusal.reason == "QuantizationNotSupported"
    assert "t4-16gb" in refusal.message


def test_t4_multiplies_fp16_where_bf16_was_asked_for() -> None:
    plan = planned(question(LLAMA_8B, "t4-16gb", max_model_len=2048))
    assert (plan.weights, plan.dtype, plan.kv_cache_dtype) == ("fp16", "float16", "fp16")


def test_four_bits_only_when_they_are_allowed() -> None:
    wish = question(LLAMA_70B, "h100-80gb", 4, gpus_per_node=1, max_model_len=8192)
    assert refused(wish).reason == "DoesNotFit"
    allowed = question(
        LLAMA_70B, "h100-80gb", 4, gpus_per_node=1, max_model_len=8192, allowed=("bf16", "fp8", "int8", "int4")
    )
    assert planned(allowed).weights == "int4"


def test_a_floor_is_never_undercut() -> None:
    wish = question(LLAMA_70B, "h100-80gb", gpus_per_node=1, max_model_len=8192, allowed=("bf16", "int4"), floor="int8")
    refusal = refused(wish)
    assert any("below the floor int8" in entry.reason for entry in refusal.rejected)
    explicit = question(LLAMA_8B, "h100-80gb", weights="int8", floor="fp8")
    assert refused(explicit).reason == "BelowFloor"


def test_a_quantized_checkpoint_below_the_floor_is_refused() -> None:
    config = {**_llama_8b_config(), "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    facts = facts_of_config(config, "config.json")
    assert refused(question(facts, "h100-80gb", floor="fp8")).reason == "BelowFloor"


def test_a_quantized_checkpoint_keeps_its_format() -> None:
    config = {**_llama_8b_config(), "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    plan = planned(question(facts_of_config(config, "config.json"), "l4-24gb"))
    assert (plan.weights, plan.quantization, plan.dtype) == ("awq", "auto", "bfloat16")
    assert plan.weight_bytes_per_gpu < 6_000_000_000
    refusal = refused(question(facts_of_config(config, "config.json"), "h100-80gb", weights="fp8"))
    assert "already awq" in refusal.message


def test_tensor_parallel_3_with_32_heads_is_refused_naming_both() -> None:
    refusal = refused(question(LLAMA_8B, "h100-80gb", tensor=3))
    assert refusal.reason == "TensorParallelism"
    assert "32 attention heads" in refusal.message
    assert "tensor parallel size 3" in refusal.message


def test_tensor_parallel_8_repeats_4_kv_heads_and_counts_them() -> None:
    facts = llama_facts()
    plan = planned(question(facts, "h100-80gb", tensor=8, max_model_len=1024))
    assert plan.kv_bytes_per_token == 2 * 4 * 4 * 64 * 2
    assert plan.kv_bytes_per_token_per_gpu == 2 * 4 * 1 * 64 * 2  # not an eighth: one whole head
    assert plan.memory.kv_cache == plan.kv_cache_tokens * plan.kv_bytes_per_token_per_gpu
    assert any("4 KV heads on 8 ranks, so each is held 2 times" in line for line in plan.explanation)


def test_tensor_parallel_4_on_a_node_with_2_gpus_is_refused_naming_both() -> None:
    refusal = refused(question(LLAMA_8B, "h100-80gb", tensor=4, gpus_per_node=2))
    assert refusal.reason == "TooFewGPUs"
    assert "needs 4 GPUs" in refusal.message
    assert "a node has 2" in refusal.message


def test_the_smallest_power_of_two_that_fits_is_taken() -> None:
    plan = planned(question("Qwen/Qwen3-32B", "h100-80gb", 4, max_model_len=8192))
    assert plan.tensor_parallel_size == 1
    plan = planned(question("Qwen/Qwen3-32B", "h100-80gb", 8, max_model_len=8192))
    assert plan.tensor_parallel_size == 2


def test_pipelines_span_nodes_only_when_one_cannot_hold_the_model() -> None:
    small = planned(question(LLAMA_8B, "h100-80gb", max_nodes=2))
    assert small.pipeline_parallel_size == 1
    big = question("meta-llama/Llama-3.1-405B-Instruct", "a100-80gb", 4, allowed=("bf16",), max_model_len=8192)
    assert refused(big).reason == "DoesNotFit"
    plan = planned(
        question(
            "meta-llama/Llama-3.1-405B-Instruct", "a100-80gb", 4, allowed=("bf16",), max_model_len=8192, max_nodes=2
        )
    )
    assert (plan.tensor_parallel_size, plan.pipeline_parallel_size) == (8, 2)


def test_another_format_is_tried_before_a_second_node() -> None:
    plan = planned(question("meta-llama/Llama-3.1-405B-Instruct", "h100-80gb", 4, max_model_len=8192, max_nodes=2))
    assert (plan.weights, plan.pipeline_parallel_size) == ("fp8", 1)


def test_a_context_longer_than_the_model_is_refused() -> None:
    refusal = refused(question(LLAMA_8B, "h100-80gb", max_model_len=131_073))
    assert refusal.reason == "ContextTooLong"
    assert "131,073" in refusal.message
    assert "context.maxModelLen: 131072" in refusal.suggestions


@pytest.mark.parametrize("kind", ["tokens", "bytes"])
def test_a_budget_below_one_sequence_is_refused(kind: str) -> None:
    refusal = refused(question(LLAMA_8B, "h100-80gb", kv_budget=KVBudget(kind, 1000), max_model_len=8192))  # type: ignore[arg-type]
    assert refusal.reason == "KVBudgetTooSmall"
    assert "8,192" in refusal.message


def test_fewer_running_than_promised_sequences_is_a_contradiction() -> None:
    refusal = refused(question(LLAMA_8B, "h100-80gb", 16, max_model_len=2048, max_num_seqs=8))
    assert refusal.reason == "MaxNumSeqsTooSmall"
    assert planned(question(LLAMA_8B, "h100-80gb", 16, max_model_len=2048, max_num_seqs=16)).max_num_seqs == 16


def test_max_num_seqs_reserves_no_cache_but_its_logits_and_graphs_are_counted() -> None:
    few = planned(question(LLAMA_8B, "h100-80gb", 4, max_model_len=2048, max_num_seqs=8))
    many = planned(question(LLAMA_8B, "h100-80gb", 4, max_model_len=2048, max_num_seqs=512))
    assert few.kv_cache_tokens == many.kv_cache_tokens
    assert many.memory.logits == few.memory.logits * 64
    assert many.memory.graphs > few.memory.graphs


def test_mixed_models_are_planned_on_amd_too() -> None:
    plan = planned(question("mistralai/Mixtral-8x7B-Instruct-v0.1", "mi300x-192gb", 16, max_model_len=8192))
    assert plan.weights == "bf16"
    assert plan.weight_bytes_per_gpu == pytest.approx(2 * 46_702_792_704, rel=0.001)


def test_mxfp4_needs_hardware_that_can_at_least_dequantize_it() -> None:
    assert planned(question("openai/gpt-oss-20b", "h100-80gb")).weights == "mxfp4"
    assert refused(question("openai/gpt-oss-20b", "t4-16gb")).reason == "QuantizationNotSupported"


def test_a_plan_carries_only_integers_and_strings() -> None:
    def check(value: object) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)
        else:
            assert type(value) in (int, str), value

    check(planned(question(LLAMA_70B, "h100-80gb", 4)).to_status())
    check(refused(question(LLAMA_70B, "t4-16gb", 4)).to_status())


def _llama_8b_config() -> dict[str, object]:
    facts = facts_of(LLAMA_8B)
    return {
        "model_type": "llama",
        "num_hidden_layers": facts.num_layers,
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.intermediate_size,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "vocab_size": facts.vocab_size,
        "max_position_embeddings": 8192,
    }
