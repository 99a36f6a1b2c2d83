"""Kernels: each hot operation once in plain PyTorch (the definition) and once in Triton; the tensor's device picks."""

from forebay_kernels.dispatch import implementation_of
from forebay_kernels.operations import (
    add_rms_norm,
    decode_attention,
    prefill_attention,
    rms_norm,
    rotary,
    silu_and_mul,
    write_kv_cache,
)

__all__ = [
    "add_rms_norm",
    "decode_attention",
    "implementation_of",
    "prefill_attention",
    "rms_norm",
    "rotary",
    "silu_and_mul",
    "write_kv_cache",
]
