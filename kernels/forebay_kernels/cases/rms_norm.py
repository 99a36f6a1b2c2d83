"""Bandwidth of rms_norm: reads x and weight, writes the result."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's norm of num_tokens rows."""
    x = torch.randn(num_tokens, shape.hidden_size, device=device, dtype=dtype)
    weight = torch.randn(shape.hidden_size, device=device, dtype=dtype)
    return Case((x, weight, 1e-5), bytes_moved=2 * x.nbytes + weight.nbytes)
