"""Bandwidth of silu_and_mul_quantize to int8: reads gate and up, writes a byte an element."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's activation of num_tokens rows."""
    gate_up = torch.randn(num_tokens, 2 * shape.intermediate_size, device=device, dtype=dtype)
    bytes_moved = gate_up.nbytes + gate_up.numel() // 2 + 4 * num_tokens
    # Neighbouring numbers of eight bits are 1 apart.
    return Case((gate_up, torch.int8), bytes_moved=bytes_moved, tolerance=1.0)
