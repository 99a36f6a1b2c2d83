"""The registry that picks the implementation of every kernel by device: Triton on GPUs, PyTorch elsewhere.

Triton is imported when the first GPU tensor arrives, never before, so that a machine without a GPU does not pay for it.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from forebay_kernels import reference

# PyTorch built for ROCm calls its GPUs "cuda" too; "hip" is the name that its tensors can carry besides.
_triton_device_types = {"cuda", "hip"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """Where the two implementations of one operation are found; both take the same arguments."""

    definition: Callable[..., Any]
    """The plain PyTorch function."""
    gpu_module: str
    """The module whose function of the same name launches the Triton kernel."""


KERNELS: dict[str, Kernel] = {
    "rms_norm": Kernel(reference.rms_norm, "forebay_kernels.gpu.rms_norm"),
    "add_rms_norm": Kernel(reference.add_rms_norm, "forebay_kernels.gpu.rms_norm"),
    "rotary": Kernel(reference.rotary, "forebay_kernels.gpu.rotary"),
    "silu_and_mul": Kernel(reference.silu_and_mul, "forebay_kernels.gpu.silu_and_mul"),
    "write_kv_cache": Kernel(reference.write_kv_cache, "forebay_kernels.gpu.write_kv_cache"),
    "prefill_attention": Kernel(reference.prefill_attention, "forebay_kernels.gpu.prefill_attention"),
    "decode_attention": Kernel(reference.decode_attention, "forebay_kernels.gpu.decode_attention"),
    "gelu_and_mul": Kernel(reference.gelu_and_mul, "forebay_kernels.gpu.silu_and_mul"),
    "quantize_per_token": Kernel(reference.quantize_per_token, "forebay_kernels.gpu.quantize_per_token"),
    "rms_norm_quantize": Kernel(reference.rms_norm_quantize, "forebay_kernels.gpu.rms_norm_quantize"),
    "add_rms_norm_quantize": Kernel(reference.add_rms_norm_quantize, "forebay_kernels.gpu.rms_norm_quantize"),
    "silu_and_mul_quantize": Kernel(reference.silu_and_mul_quantize, "forebay_kernels.gpu.silu_and_mul_quantize"),
    "gelu_and_mul_quantize": Kernel(reference.gelu_and_mul_quantize, "forebay_kernels.gpu.silu_and_mul_quantize"),
    "w8a8_matmul": Kernel(reference.w8a8_matmul, "forebay_kernels.gpu.scaled_matmul"),
    "fp8_matmul": Kernel(reference.fp8_matmul, "forebay_kernels.gpu.scaled_matmul"),
    "w8a16_matmul": Kernel(reference.w8a16_matmul, "forebay_kernels.gpu.scaled_matmul"),
    "w4a16_matmul": Kernel(reference.w4a16_matmul, "forebay_kernels.gpu.w4a16_matmul"),
    "fused_moe": Kernel(reference.fused_moe, "forebay_kernels.gpu.fused_moe"),
    "gather_kv_blocks": Kernel(reference.gather_kv_blocks, "forebay_kernels.gpu.gather_kv_blocks"),
    "apply_bitmask": Kernel(reference.apply_bitmask, "forebay_kernels.gpu.apply_bitmask"),
    "sample": Kernel(reference.sample, "forebay_kernels.gpu.sample"),
    "verify_draft": Kernel(reference.verify_draft, "forebay_kernels.gpu.verify_draft"),
}


def implementation_of(device: torch.device | str) -> dict[str, str]:
    """Say which implementation each kernel has on this device: "triton" or "torch", by kernel name. For logs."""
    name = "triton" if runs_triton(torch.device(device).type) else "torch"
    return dict.fromkeys(KERNELS, name)


def runs_triton(device_type: str) -> bool:
    """Say whether kernels on this device type ("cpu", "cuda", ...) are Triton's."""
    return device_type in _triton_device_types


@contextmanager
def interpreted_on_cpu() -> Iterator[None]:
    """Meanwhile CPU tensors are given to Triton too, and whoever asks `runs_triton` takes a GPU's way on a CPU.

    For tests and dry runs: Triton must have been imported with TRITON_INTERPRET=1, and is thousands of times slower.
    """
    _triton_device_types.add("cpu")
    implementation.cache_clear()
    try:
        yield
    finally:
        _triton_device_types.discard("cpu")
        implementation.cache_clear()


@cache
def implementation(name: str, device_type: str) -> Callable[..., Any]:
    """Return the function that runs kernel `name` on tensors of this device type ("cpu", "cuda", ...).

    Raises:
        KeyError: there is no kernel of that name.
        ImportError: a GPU tensor arrived, and triton is not installed.
    """
    kernel = KERNELS[name]
    if not runs_triton(device_type):
        return kernel.definition
    launcher: Callable[..., Any] = getattr(importlib.import_module(kernel.gpu_module), name)
    return launcher
