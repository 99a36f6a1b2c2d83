"""Quantization by row, defined in plain PyTorch: symmetric, a row's largest magnitude becomes the largest number."""

import torch

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
