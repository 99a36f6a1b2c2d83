"""RMS normalisation in Triton, alone and fused with the residual addition before it.

Both are bound by memory: a row is read once, kept in registers for the two passes over it, and written once.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.launch import Launch, block_of, warps_of


@triton.jit
def normalise(row, weight, hidden_size, eps):  # type: ignore[no-untyped-def]
    """Compute round(row / sqrt(mean(row²) + eps)) · weight. Elements of row past hidden_size must be 0."""
    row_float32 = row.to(tl.float32)
    mean_square = tl.sum(row_float32 * row_float32, axis=0) / hidden_size
    # Rounded before the product with weight, as the definition does.
    normed = (row_float32 * tl.rsqrt(mean_square + eps)).to(row.dtype)
    return normed.to(tl.float32) * weight.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    normed_ptr,  # [num_tokens, hidden_size], contiguous
    x_ptr,  # [num_tokens, hidden_size]
    weight_ptr,  # [hidden_size]
    stride_x_token,
    hidden_size,
    eps,
    BLOCK_HIDDEN: tl.constexpr,
):
    """Normalise one token's row. A program never sees another row, so a row's bits do not depend on its batch."""
    # 64 bits: num_tokens * hidden_size can pass 2**31.
    token = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_HIDDEN)
    mask = offs < hidden_size
    row = tl.load(x_ptr + token * stride_x_token + offs, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    normed = normalise(row, weight, hidden_size, eps)
    tl.store(normed_ptr + token * hidden_size + offs, normed.to(row.dtype), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _add_rms_norm_kernel(  # type: ignore[no-untyped-def]
    normed_ptr,  # [num_tokens, hidden_size], contiguous
    new_residual_ptr,  # [num_tokens, hidden_size], contiguous
    x_ptr,  # [num_tokens, hidden_size]
    residual_ptr,  # [num_tokens, hidden_size]
    weight_ptr,  # [hidden_size]
    stride_x_token,
    stride_residual_token,
    hidden_size,
    eps,
    BLOCK_HIDDEN: tl.constexpr,
):
    """Add one token's row to its residual, store the sum, normalise the sum as it was stored."""
    token = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_HIDDEN)
    mask = offs < hidden_size
    x = tl.load(x_ptr + token * stride_x_token + offs, mask=mask, other=0.0)
    residual = tl.load(residual_ptr + token * stride_residual_token + offs, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    # Rounded before the statistics, as the definition does: what is normalised is what the next layer adds to.
    new_residual = (residual.to(tl.float32) + x.to(tl.float32)).to(x.dtype)
    tl.store(new_residual_ptr + token * hidden_size + offs, new_residual, mask=mask)
    normed = normalise(new_residual, weight, hidden_size, eps)
    tl.store(normed_ptr + token * hidden_size + offs, normed.to(x.dtype), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Launch the kernel; arguments and result as `forebay_kernels.rms_norm`."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(normed, x, weight, eps).run()
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.add_rms_norm`."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new_residual = torch.empty_like(normed)
    add_rms_norm_launch(normed, new_residual, x, residual, weight, eps).run()
    return normed, new_residual


def rms_norm_launch(normed: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Launch:
    """Return the launch of `rms_norm` that writes to normed, [num_tokens, hidden_size], contiguous. Pure."""
    num_tokens, hidden_size = x.shape
    block_hidden = block_of(hidden_size)
    return Launch(
        kernel=_rms_norm_kernel,
        grid=(num_tokens,),
        arguments={
            "normed_ptr": normed,
            "x_ptr": x,
            "weight_ptr": weight,
            "stride_x_token": x.stride(0),
            "hidden_size": hidden_size,
            "eps": eps,
            "BLOCK_HIDDEN": block_hidden,
        },
        num_warps=warps_of_row(block_hidden),
    )


def add_rms_norm_launch(
    normed: torch.Tensor,
    new_residual: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> Launch:
    """Return the launch of `add_rms_norm` that writes to normed and new_residual, both contiguous. Pure."""
    num_tokens, hidden_size = x.shape
    block_hidden = block_of(hidden_size)
    return Launch(
        kernel=_add_rms_norm_kernel,
        grid=(num_tokens,),
        arguments={
            "normed_ptr": normed,
            "new_residual_ptr": new_residual,
            "x_ptr": x,
            "residual_ptr": residual,
            "weight_ptr": weight,
            "stride_x_token": x.stride(0),
            "stride_residual_token": residual.stride(0),
            "hidden_size": hidden_size,
            "eps": eps,
            "BLOCK_HIDDEN": block_hidden,
        },
        num_warps=warps_of_row(block_hidden),
    )


def warps_of_row(block_hidden: int) -> int:
    """Return the warps of a program that keeps a whole row in registers."""
    # Two 16-byte loads of bfloat16 a thread, and registers to spare up to the longest row: 32768 / (16 * 32) = 64
    # elements a thread. By arithmetic: not yet measured on a GPU.
    return warps_of(block_hidden, elements_per_thread=16)
