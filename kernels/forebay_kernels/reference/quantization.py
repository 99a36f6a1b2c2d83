"""Quantization by row, defined in plain PyTorch: symmetric, a row's largest magnitude becomes the largest number."""

import torch

from forebay_kernels.reference.activations import gelu_and_mul, silu_and_mul
from forebay_kernels.reference.norms import add_rms_norm, rms_norm

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Largest magnitude of each 8-bit format that we use; -128 stays unused, so that a format is symmetric."""

SMALLEST_MAGNITUDE = 1e-30
"""A row whose largest magnitude is below this becomes zeros: its inverse scale might overflow."""


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (quantized, scales) with x ≈ quantized · scales[..., None].

    Args:
        x: [..., row], any float dtype. The arithmetic is float32.
        dtype: int8 or float8_e4m3fn; rounded to the nearest, halves to even.

    Returns:
        quantized: [..., row], dtype.
        scales: [...], float32: largest magnitude of the row / largest magnitude of dtype.
    """
    largest = LARGEST[dtype]
    magnitude = x.float().abs().amax(-1)
    inverse = torch.where(magnitude > SMALLEST_MAGNITUDE, largest / magnitude, 0.0)
    scaled = (x.float() * inverse.unsqueeze(-1)).clamp(-largest, largest)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), magnitude / largest


def quantize_per_token(
    x: torch.Tensor, dtype: torch.dtype, group_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of x as `quantize_rows` does; with group_size, each group_size elements of a row."""
    if group_size is None:
        return quantize_rows(x, dtype)
    quantized, scales = quantize_rows(x.reshape(x.shape[0], -1, group_size), dtype)
    return quantized.flatten(1), scales


def rms_norm_quantize(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantize_rows(rms_norm(x)): the norm is rounded to the dtype of x before it is quantized."""
    return quantize_rows(rms_norm(x, weight, eps), dtype)


def add_rms_norm_quantize(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (quantized, scales, new_residual) of add_rms_norm(x, residual)."""
    normed, new_residual = add_rms_norm(x, residual, weight, eps)
    return *quantize_rows(normed, dtype), new_residual


def silu_and_mul_quantize(gate_up: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantize_rows(silu_and_mul(gate_up)): the product is rounded before it is quantized."""
    return quantize_rows(silu_and_mul(gate_up), dtype)


def gelu_and_mul_quantize(gate_up: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantize_rows(gelu_and_mul(gate_up)): the product is rounded before it is quantized."""
    return quantize_rows(gelu_and_mul(gate_up), dtype)
