"""Bandwidth of rms_norm_quantize to int8: reads x and weight, writes a byte an element and 4 a token."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's norm of num_tokens rows."""
    x = torch.randn(num_tokens, shape.hidden_size, device=device, dtype=dtype)
    weight = torch.randn(shape.hidden_size, device=device, dtype=dtype)
    bytes_moved = x.nbytes + weight.nbytes + x.numel() + 4 * num_tokens
    # Neighbouring numbers of eight bits are 1 apart.
    return Case((x, weight, 1e-5, torch.int8), bytes_moved=bytes_moved, tolerance=1.0)
