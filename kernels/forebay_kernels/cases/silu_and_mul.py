"""Bandwidth of silu_and_mul: reads gate and up, writes half as much."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's activation of num_tokens rows."""
    gate_up = torch.randn(num_tokens, 2 * shape.intermediate_size, device=device, dtype=dtype)
    return Case((gate_up,), bytes_moved=gate_up.nbytes + gate_up.nbytes // 2)
