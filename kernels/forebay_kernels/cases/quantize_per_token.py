"""Bandwidth of quantize_per_token to int8: reads x, writes a byte an element and 4 a token."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's activations of num_tokens tokens."""
    x = torch.randn(num_tokens, shape.hidden_size, device=device, dtype=dtype)
    bytes_moved = x.nbytes + x.numel() + 4 * num_tokens
    # Neighbouring numbers of eight bits are 1 apart.
    return Case((x, torch.int8), bytes_moved=bytes_moved, tolerance=1.0)
