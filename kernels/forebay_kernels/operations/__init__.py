"""The kernels as callers see them: typed, their arguments checked, run by the implementation that fits the device.

Every check is on shapes, strides, dtypes and devices alone, none reads a tensor's values, so none waits for the GPU.
They hold on every device alike: what would fail on a GPU fails on a CPU too.
"""

from forebay_kernels.operations.activations import gelu_and_mul, silu_and_mul
from forebay_kernels.operations.attention import decode_attention, prefill_attention
from forebay_kernels.operations.kv_cache import gather_kv_blocks, write_kv_cache
from forebay_kernels.operations.matmul import fp8_matmul, w4a16_matmul, w8a8_matmul, w8a16_matmul
from forebay_kernels.operations.moe import fused_moe
from forebay_kernels.operations.norms import add_rms_norm, rms_norm
from forebay_kernels.operations.positions import rotary
from forebay_kernels.operations.quantization import (
    add_rms_norm_quantize,
    gelu_and_mul_quantize,
    quantize_per_token,
    rms_norm_quantize,
    silu_and_mul_quantize,
)
from forebay_kernels.operations.sampling import apply_bitmask, sample, verify_draft

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
