"""Bandwidth of add_rms_norm: reads x, residual and weight, writes the normalised sum and the sum."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's addition and norm of num_tokens rows."""
    x = torch.randn(num_tokens, shape.hidden_size, device=device, dtype=dtype)
    residual = torch.randn_like(x)
    weight = torch.randn(shape.hidden_size, device=device, dtype=dtype)
    return Case((x, residual, weight, 1e-5), bytes_moved=4 * x.nbytes + weight.nbytes)
