"""RMS normalisation and quantization of the result in one Triton launch, alone and after the residual addition.

Bound by memory: what the norm would write and the quantization read again stays in registers.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import as_bytes, format_of, largest_of
from forebay_kernels.gpu.launch import Launch, block_of
from forebay_kernels.gpu.quantize_per_token import store_quantized
from forebay_kernels.gpu.rms_norm import normalise, warps_of_row


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm_quantize_kernel(  # type: ignore[no-untyped-def]
    quantized_ptr,  # [num_tokens, hidden_size], contiguous
    scales_ptr,  # [num_tokens], float32, contiguous
    new_residual_ptr,  # [num_tokens, hidden_size], contiguous; unused unless HAS_RESIDUAL
    x_ptr,  # [num_tokens, hidden_size]
    residual_ptr,  # [num_tokens, hidden_size]; unused unless HAS_RESIDUAL
    weight_ptr,  # [hidden_size]
    stride_x_token,
    stride_residual_token,
    hidden_size,
    eps,
    largest,
    HAS_RESIDUAL: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
):
    """Normalise one token's row (or its sum with the residual), round it, quantize it."""
    token = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_HIDDEN)
    mask = offs < hidden_size
    row = tl.load(x_ptr + token * stride_x_token + offs, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + token * stride_residual_token + offs, mask=mask, other=0.0)
        row = (residual.to(tl.float32) + row.to(tl.float32)).to(row.dtype)
        tl.store(new_residual_ptr + token * hidden_size + offs, row, mask=mask)
    normed = normalise(row, weight, hidden_size, eps).to(row.dtype)
    store_quantized(quantized_ptr + token * hidden_size, scales_ptr + token, normed, offs, mask, largest, FORMAT)


def rms_norm_quantize(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.rms_norm_quantize`."""
    quantized = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
    rms_norm_quantize_launch(quantized, scales, x, weight, eps).run()
    return quantized, scales


def add_rms_norm_quantize(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.add_rms_norm_quantize`."""
    quantized = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
    new_residual = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    add_rms_norm_quantize_launch(quantized, scales, new_residual, x, residual, weight, eps).run()
    return quantized, scales, new_residual


def rms_norm_quantize_launch(
    quantized: torch.Tensor, scales: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> Launch:
    """Return the launch of `rms_norm_quantize` that writes to quantized and scales, both contiguous. Pure."""
    return _launch(quantized, scales, x, x, x, weight, eps, has_residual=False)


def add_rms_norm_quantize_launch(
    quantized: torch.Tensor,
    scales: torch.Tensor,
    new_residual: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> Launch:
    """Return the launch of `add_rms_norm_quantize` that writes to the first three, all contiguous. Pure."""
    return _launch(quantized, scales, new_residual, x, residual, weight, eps, has_residual=True)


def _launch(
    quantized: torch.Tensor,
    scales: torch.Tensor,
    new_residual: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    has_residual: bool,
) -> Launch:
    num_tokens, hidden_size = x.shape
    block_hidden = block_of(hidden_size)
    return Launch(
        kernel=_rms_norm_quantize_kernel,
        grid=(num_tokens,),
        arguments={
            "quantized_ptr": as_bytes(quantized),
            "scales_ptr": scales,
            "new_residual_ptr": new_residual,
            "x_ptr": x,
            "residual_ptr": residual,
            "weight_ptr": weight,
            "stride_x_token": x.stride(0),
            "stride_residual_token": residual.stride(0),
            "hidden_size": hidden_size,
            "eps": eps,
            "largest": largest_of(quantized.dtype),
            "HAS_RESIDUAL": has_residual,
            "FORMAT": format_of(quantized.dtype),
            "BLOCK_HIDDEN": block_hidden,
        },
        num_warps=warps_of_row(block_hidden),
    )
