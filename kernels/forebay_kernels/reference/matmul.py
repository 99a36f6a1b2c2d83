"""Matrix products with quantized weights, defined in plain PyTorch.

All compute epilogue(x · weightᵀ): multiply with the scales, add bias and residual in float32, round once.
"""

import torch

from forebay_kernels.int4_weights import unpack_int4

SCALE_BLOCK = 128
"""Rows and columns of a weight that share one scale, and elements of a token, where scales are by block."""


def w8a8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum products of int8 exactly, as integers; then scale by token and by channel."""
    # float64 holds every sum of products of int8 exactly, and is faster than integers on CPUs.
    acc = (x.double() @ weight.double().T).float()
    return _epilogue(acc * x_scales.unsqueeze(1) * weight_scales, dtype, bias, residual)


def fp8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum products of float8_e4m3fn in float32: scales by token and tensor or channel, or both by blocks of 128."""
    if weight_scales.dim() == 1:
        acc = x.float() @ weight.float().T
        return _epilogue(acc * x_scales.unsqueeze(1) * weight_scales, dtype, bias, residual)
    x_scaled = x.float() * _by_block(x_scales, 1)[:, : x.shape[1]]
    expanded = _by_block(_by_block(weight_scales, 0), 1)[: weight.shape[0], : weight.shape[1]]
    return _epilogue(x_scaled @ (weight.float() * expanded).T, dtype, bias, residual)


def w8a16_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum products of x and the weight's 8-bit numbers in float32, then scale by channel."""
    return _epilogue((x.float() @ weight.float().T) * weight_scales, x.dtype, bias, residual)


def _by_block(scales: torch.Tensor, dim: int) -> torch.Tensor:
    return scales.repeat_interleave(SCALE_BLOCK, dim)


def _epilogue(
    scaled: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:
    if bias is not None:
        scaled = scaled + bias.float()
    if residual is not None:
        scaled = scaled + residual.float()
    return scaled.to(dtype)


def w4a16_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    permutation: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum products of x and (number - zero) · scale, group by group, in float32."""
    group_size = x.shape[1] // scales.shape[1]
    numbers = unpack_int4(packed, group_size).view(*scales.shape, group_size).float()
    shifted = numbers - (8.0 if zeros is None else zeros.float().unsqueeze(2))
    weight = (shifted * scales.float().unsqueeze(2)).flatten(1)
    permuted = x if permutation is None else x[:, permutation.long()]
    return _epilogue(permuted.float() @ weight.T, x.dtype, bias, residual)
