"""Matrix products with quantized weights, as callers see them: x · weightᵀ, with bias and residual in the epilogue.

A row's result does not depend on how many rows there are: the same sums in the same order for one token and for many.
"""

import torch

from forebay_kernels.checks import matmul as checks
from forebay_kernels.dispatch import implementation


def w8a8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply int8 activations with int8 weights: exact integer sums, scaled by token and by channel.

    Args:
        x: [num_tokens, in_features], int8, as `quantize_per_token` returns it; rows may lie apart.
        x_scales: [num_tokens], float32, contiguous.
        weight: [out_features, in_features], int8; rows may lie apart.
        weight_scales: [out_features], float32, contiguous.
        dtype: of the result: float32, float16 or bfloat16.
        bias: [out_features], dtype, contiguous, or None.
        residual: [num_tokens, out_features], dtype, contiguous, added to the result, or None. Not written to.

    Returns:
        [num_tokens, out_features], dtype, contiguous: everything after the sums is float32, rounded once.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (x, x_scales, weight, weight_scales, dtype, bias, residual)
    checks.check_w8a8_matmul(*arguments)
    output: torch.Tensor = implementation("w8a8_matmul", x.device.type)(*arguments)
    return output


def fp8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply float8_e4m3fn activations with float8_e4m3fn weights: float32 sums. A GPU without FP8 takes float16.

    Args:
        x: [num_tokens, in_features], float8_e4m3fn; rows may lie apart.
        x_scales: [num_tokens], or [num_tokens, ceil(in_features / 128)] where weight_scales are by block; float32.
        weight: [out_features, in_features], float8_e4m3fn; rows may lie apart.
        weight_scales: [1] (tensor), [out_features] (channel) or [ceil(out_features / 128), ceil(in_features / 128)]
            (block), float32, contiguous.
        dtype: as for `w8a8_matmul`.
        bias: as for `w8a8_matmul`.
        residual: as for `w8a8_matmul`.

    Returns:
        As `w8a8_matmul`.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (x, x_scales, weight, weight_scales, dtype, bias, residual)
    checks.check_fp8_matmul(*arguments)
    output: torch.Tensor = implementation("fp8_matmul", x.device.type)(*arguments)
    return output


def w8a16_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply activations with weights of eight bits, scaled by channel: half of bfloat16's bytes on any GPU.

    Args:
        x: [num_tokens, in_features], float32, float16 or bfloat16; rows may lie apart.
        weight: [out_features, in_features], int8 or float8_e4m3fn; rows may lie apart.
        weight_scales: [out_features], float32, contiguous.
        bias: as for `w8a8_matmul`, dtype of x.
        residual: as for `w8a8_matmul`, dtype of x.

    Returns:
        [num_tokens, out_features], dtype of x, contiguous.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (x, weight, weight_scales, bias, residual)
    checks.check_w8a16_matmul(*arguments)
    output: torch.Tensor = implementation("w8a16_matmul", x.device.type)(*arguments)
    return output


def w4a16_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    permutation: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply activations with weights of four bits: a quarter of bfloat16's bytes on any GPU.

    Args:
        x: [num_tokens, in_features], float32, float16 or bfloat16; rows may lie apart.
        packed: [out_features, in_features / 2], uint8, contiguous, as `forebay_kernels.int4_weights` packs it; so the
            three after it, which are fields of `Int4Weight`.
        scales: [out_features, num_groups], dtype of x, contiguous; in_features / num_groups is 32, 64 or a multiple of
            128.
        zeros: [out_features, num_groups], uint8, contiguous; None: 8.
        permutation: [in_features], int32, contiguous: which element of x meets each number; None: they are in order.
        bias: as for `w8a8_matmul`, dtype of x.
        residual: as for `w8a8_matmul`, dtype of x.

    Returns:
        [num_tokens, out_features], dtype of x, contiguous. Sums are float32.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (x, packed, scales, zeros, permutation, bias, residual)
    checks.check_w4a16_matmul(*arguments)
    output: torch.Tensor = implementation("w4a16_matmul", x.device.type)(*arguments)
    return output
