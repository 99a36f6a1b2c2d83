"""Kernels: each hot operation once in plain PyTorch (the definition) and once in Triton; the tensor's device picks."""

from forebay_kernels.dispatch import implementation_of
from forebay_kernels.operations import (
    add_rms_norm,
    add_rms_norm_quantize,
    decode_attention,
    fp8_matmul,
    gelu_and_mul,
    gelu_and_mul_quantize,
    prefill_attention,
    quantize_per_token,
    rms_norm,
    rms_norm_quantize,
    rotary,
    silu_and_mul,
    silu_and_mul_quantize,
    w4a16_matmul,
    w8a8_matmul,
    w8a16_matmul,
    write_kv_cache,
)

__all__ = [
    "add_rms_norm",
    "add_rms_norm_quantize",
    "decode_attention",
    "fp8_matmul",
    "gelu_and_mul",
    "gelu_and_mul_quantize",
    "implementation_of",
    "prefill_attention",
    "quantize_per_token",
    "rms_norm",
    "rms_norm_quantize",
    "rotary",
    "silu_and_mul",
    "silu_and_mul_quantize",
    "w4a16_matmul",
    "w8a8_matmul",
    "w8a16_matmul",
    "write_kv_cache",
]
