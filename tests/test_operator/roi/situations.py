"""Ready-made machines and situations for the tests of the calculator."""

from functools import cache
from typing import Any

from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.roi.variant import Variant, variants
from tests.test_operator.planner.questions import LLAMA_8B, LLAMA_70B, facts_of

MACHINES = [
    (LLAMA_8B, "h100-80gb"),
    (LLAMA_8B, "t4-16gb"),  # fp16, no fp8
    (LLAMA_70B, "a100-80gb"),  # fp8 is dequantized, int8 is native
    ("Qwen/Qwen3-30B-A3B", "l40s-48gb"),  # experts
    ("openai/gpt-oss-120b", "h200-141gb"),  # windows
    ("deepseek-ai/DeepSeek-V3", "b200-180gb"),  # a checkpoint in fp8 blocks, latent attention
]


@cache
def machine(model: str, accelerator: str) -> tuple[Variant, ...]:
    return variants(facts_of(model), accelerators()[accelerator], 8192)


def plain_variant(**changes: Any) -> Variant:
    """Reads its weights in a second, and nearly nothing else costs time."""
    numbers: dict[str, Any] = {
        "format": "bf16",
        "gpus": 1,
        "tensor": 1,
        "pipeline": 1,
        "weight_bytes": 10**9,
        "touched": ((1.0, 0.0),),
        "kv_bytes_per_token": 0,
        "sliding_bytes_per_token": 0,
        "window": 0,
        "kv_tokens": 1000,
        "max_num_seqs": 256,
        "active_parameters": 10**6,
        "attention_flops": 0,
        "score_bytes": 0.0,
        "bytes_per_second": 1e9,
        "flops_per_second": 1e12,
        "collective_us": 0.0,
        "collective_us_per_token": 0.0,
    }
    return Variant(**(numbers | changes))
