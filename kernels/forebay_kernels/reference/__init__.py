"""The definition of every kernel in plain PyTorch: what the Triton kernels are tested against and what CPUs run.

Rounding follows the Llama model of Hugging Face transformers operation by operation, so that a bfloat16 run picks the
same tokens: where that model rounds to the input dtype between two steps, so do these functions. The one exception is
`rotary`, which keeps cos and sin in float32 where that model rounds them to the input dtype first.
"""

from forebay_kernels.reference.activations import gelu_and_mul, silu_and_mul
from forebay_kernels.reference.attention import decode_attention, prefill_attention
from forebay_kernels.reference.kv_cache import gather_kv_blocks, write_kv_cache
from forebay_kernels.reference.matmul import fp8_matmul, w4a16_matmul, w8a8_matmul, w8a16_matmul
from forebay_kernels.reference.moe import fused_moe
from forebay_kernels.reference.norms import add_rms_norm, rms_norm
from forebay_kernels.reference.positions import rotary
from forebay_kernels.reference.quantization import (
    add_rms_norm_quantize,
    gelu_and_mul_quantize,
    quantize_per_token,
    rms_norm_quantize,
    silu_and_mul_quantize,
)
from forebay_kernels.reference.sampling import apply_bitmask, sample, verify_draft

__all__ = [
    "add_rms_norm",
    "add_rms_norm_quantize",
    "apply_bitmask",
    "decode_attention",
    "fp8_matmul",
    "fused_moe",
    "gather_kv_blocks",
    "gelu_and_mul",
    "gelu_and_mul_quantize",
    "prefill_attention",
    "quantize_per_token",
    "rms_norm",
    "rms_norm_quantize",
    "rotary",
    "sample",
    "silu_and_mul",
    "silu_and_mul_quantize",
    "verify_draft",
    "w4a16_matmul",
    "w8a8_matmul",
    "w8a16_matmul",
    "write_kv_cache",
]
