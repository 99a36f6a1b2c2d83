"""The planner's estimates are the kernels' roofline: the same bytes and operations, at the shares that it says."""

import pytest

from forebay_kernels.measurement import gpu_of
from forebay_kernels.roofline import KERNEL_WORK
from forebay_kernels.shapes import MODEL_SHAPES
from forebay_operator.planner.estimate import OUTPUT_TOKENS, PROMPT_TOKENS
from forebay_operator.planner.result import Estimate
from forebay_operator.planner.roofline import BANDWIDTH_PERCENT, FLOPS_PERCENT, STEP_OVERHEAD_US
from tests.test_operator.planner.questions import LLAMA_8B, planned, question

SHAPE = next(shape for shape in MODEL_SHAPES if shape.name == "llama-3-8b")
NUM_LAYERS, VOCAB_SIZE = 32, 128256
GPUS = ("a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")


def numbers_multiplied() -> int:
    """Of a step's products: every weight but the embedding, of which a row a token is looked up."""
    hidden, head_dim = SHAPE.hidden_size, SHAPE.head_dim
    attention = 2 * hidden * head_dim * (SHAPE.num_heads + SHAPE.num_kv_heads)
    return NUM_LAYERS * (attention + 3 * hidden * SHAPE.intermediate_size) + VOCAB_SIZE * hidden


def cached_bytes_per_token() -> float:
    """Of one layer, from two sizes of `decode_attention`: what else it moves does not grow with the cache."""
    queries = 2 * SHAPE.num_heads * SHAPE.head_dim * 2
    tables = 1024 // 16 * 4 + 4
    return (KERNEL_WORK["decode_attention"](SHAPE, 1).bytes_moved - queries - tables) / 1024


def alone(gpu: str) -> Estimate:
    estimate = planned(question(LLAMA_8B, gpu, max_model_len=4096, max_num_seqs=1, weights="bf16")).estimate
    assert (estimate.batch, estimate.prompt_tokens) == (1, PROMPT_TOKENS)
    return estimate


@pytest.mark.parametrize("name", GPUS)
def test_a_decode_step_is_estimated_by_the_bytes_that_kernels_move(name: str) -> None:
    estimate, gpu = alone(name), gpu_of(name)
    assert gpu is not None
    context = PROMPT_TOKENS + OUTPUT_TOKENS // 2
    num_bytes = 2 * numbers_multiplied() + NUM_LAYERS * context * cached_bytes_per_token()
    floor_us = num_bytes / gpu.gigabytes_per_second / 1e3
    prompt_share_us = 1000 * estimate.time_to_first_token_ms / OUTPUT_TOKENS
    step_us = estimate.inter_token_latency_us - prompt_share_us
    assert step_us == pytest.approx(floor_us * 100 / BANDWIDTH_PERCENT + STEP_OVERHEAD_US, rel=0.01)


@pytest.mark.parametrize("name", GPUS)
def test_a_prompt_is_estimated_by_the_operations_that_kernels_do(name: str) -> None:
    estimate, gpu = alone(name), gpu_of(name)
    assert gpu is not None
    attention = NUM_LAYERS * KERNEL_WORK["prefill_attention"](SHAPE, PROMPT_TOKENS).flops
    flops = 2 * numbers_multiplied() * PROMPT_TOKENS + attention
    floor_ms = flops / gpu.teraflops["bf16"] / 1e9
    expected = floor_ms * 100 / FLOPS_PERCENT + STEP_OVERHEAD_US / 1000
    assert estimate.time_to_first_token_ms == pytest.approx(expected, abs=0.6)
