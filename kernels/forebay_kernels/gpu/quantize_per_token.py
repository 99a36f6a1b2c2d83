"""Quantization of activations in Triton: each row, or each group of a row, by its largest magnitude.

Bound by memory: a row is read once, kept in registers for the two passes over it, and written once.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import as_bytes, format_of, inverse_scale, largest_of, quantize
from forebay_kernels.gpu.launch import Launch, block_of, warps_of


@triton.jit  # type: ignore[untyped-decorator]
def store_quantized(  # type: ignore[no-untyped-def]
    quantized_ptr, scale_ptr, row, offs, mask, largest, FORMAT: tl.constexpr
):
    """Quantize a row, zeros where it is masked, and store it at quantized_ptr + offs and its scale at scale_ptr."""
    row = row.to(tl.float32)
    magnitude = tl.max(tl.abs(row), 0)
    tl.store(quantized_ptr + offs, quantize(row * inverse_scale(magnitude, largest), FORMAT), mask=mask)
    tl.store(scale_ptr, magnitude / largest)


@triton.jit  # type: ignore[untyped-decorator]
def _quantize_per_token_kernel(  # type: ignore[no-untyped-def]
    quantized_ptr,  # [num_tokens, num_groups * group_size], contiguous
    scales_ptr,  # [num_tokens, num_groups], float32, contiguous
    x_ptr,  # [num_tokens, num_groups * group_size]
    stride_x_token,
    num_groups,
    group_size,
    largest,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Quantize one group of one token's row."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    offs = tl.arange(0, BLOCK)
    mask = offs < group_size
    row = tl.load(x_ptr + token * stride_x_token + group * group_size + offs, mask=mask, other=0.0)
    index = token * num_groups + group
    store_quantized(quantized_ptr + index * group_size, scales_ptr + index, row, offs, mask, largest, FORMAT)


def quantize_per_token(
    x: torch.Tensor, dtype: torch.dtype, group_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.quantize_per_token`."""
    num_tokens, hidden_size = x.shape
    quantized = torch.empty(x.shape, dtype=dtype, device=x.device)
    groups = () if group_size is None else (hidden_size // group_size,)
    scales = torch.empty((num_tokens, *groups), dtype=torch.float32, device=x.device)
    quantize_per_token_launch(quantized, scales, x).run()
    return quantized, scales


def quantize_per_token_launch(quantized: torch.Tensor, scales: torch.Tensor, x: torch.Tensor) -> Launch:
    """Return the launch of `quantize_per_token` that writes to quantized and scales, both contiguous. Pure."""
    num_tokens, hidden_size = x.shape
    num_groups = scales.shape[1] if scales.dim() == 2 else 1
    block = block_of(hidden_size // num_groups)
    return Launch(
        kernel=_quantize_per_token_kernel,
        grid=(num_tokens, num_groups),
        arguments={
            "quantized_ptr": as_bytes(quantized),
            "scales_ptr": scales,
            "x_ptr": x,
            "stride_x_token": x.stride(0),
            "num_groups": num_groups,
            "group_size": hidden_size // num_groups,
            "largest": largest_of(quantized.dtype),
            "FORMAT": format_of(quantized.dtype),
            "BLOCK": block,
        },
        # As for rms_norm: two 16-byte loads of bfloat16 a thread. By arithmetic: not yet measured on a GPU.
        num_warps=warps_of(block, elements_per_thread=16),
    )
