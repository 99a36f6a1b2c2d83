"""Quantization of activations, as callers see it: alone, and as the last step of the norm or activation before it.

Symmetric, by token: x ≈ quantized * scales[:, None]. Each token's range is its own, so a token's bits do not depend on
its batch.
"""

import torch

from forebay_kernels.checks import activations as activation_checks
from forebay_kernels.checks import norms as norm_checks
from forebay_kernels.checks import quantization as checks
from forebay_kernels.dispatch import implementation


def quantize_per_token(
    x: torch.Tensor, dtype: torch.dtype, group_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of x, or each group_size elements of a row.

    Args:
        x: [num_tokens, hidden_size], float32, float16 or bfloat16; elements of a row adjacent, rows may lie apart.
        dtype: int8 (rounded to the nearest, halves to even, -127 to 127) or float8_e4m3fn.
        group_size: divides hidden_size; None: one scale a row.

    Returns:
        (quantized, scales): [num_tokens, hidden_size], dtype, and [num_tokens] or [num_tokens, hidden_size /
        group_size], float32; both contiguous.

    Raises:
        ValueError: shape, dtype, strides or group_size are not as said above.
    """
    checks.check_quantize_per_token(x, dtype, group_size)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("quantize_per_token", x.device.type)(
        x, dtype, group_size
    )
    return outputs


def rms_norm_quantize(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise each row as `rms_norm` does, then quantize it.

    Args:
        x: as for `rms_norm`.
        weight: as for `rms_norm`.
        eps: as for `rms_norm`.
        dtype: as for `quantize_per_token`.

    Returns:
        (quantized, scales) as `quantize_per_token` returns them.

    Raises:
        ValueError: as `rms_norm` and `quantize_per_token`.
    """
    norm_checks.check_rms_norm(x, weight)
    checks.check_eight_bits(dtype)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("rms_norm_quantize", x.device.type)(
        x, weight, eps, dtype
    )
    return outputs


def add_rms_norm_quantize(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add and normalise as `add_rms_norm` does, then quantize.

    Args:
        x: as for `add_rms_norm`.
        residual: as for `add_rms_norm`.
        weight: as for `add_rms_norm`.
        eps: as for `add_rms_norm`.
        dtype: as for `quantize_per_token`.

    Returns:
        (quantized, scales, new_residual): the first two as `quantize_per_token` returns them, new_residual as
        `add_rms_norm` does.

    Raises:
        ValueError: as `add_rms_norm` and `quantize_per_token`.
    """
    norm_checks.check_add_rms_norm(x, residual, weight)
    checks.check_eight_bits(dtype)
    run = implementation("add_rms_norm_quantize", x.device.type)
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = run(x, residual, weight, eps, dtype)
    return outputs


def silu_and_mul_quantize(gate_up: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `silu_and_mul`, then quantize each row.

    Args:
        gate_up: as for `silu_and_mul`.
        dtype: as for `quantize_per_token`.

    Returns:
        (quantized, scales) as `quantize_per_token` returns them.

    Raises:
        ValueError: as `silu_and_mul` and `quantize_per_token`.
    """
    activation_checks.check_silu_and_mul(gate_up)
    checks.check_eight_bits(dtype)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("silu_and_mul_quantize", gate_up.device.type)(
        gate_up, dtype
    )
    return outputs


def gelu_and_mul_quantize(gate_up: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `gelu_and_mul`, then quantize each row. Arguments, result and errors as `silu_and_mul_quantize`."""
    activation_checks.check_gelu_and_mul(gate_up)
    checks.check_eight_bits(dtype)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("gelu_and_mul_quantize", gate_up.device.type)(
        gate_up, dtype
    )
    return outputs
