"""Bandwidth of rms_norm: reads x and weight, writes the result.

Run: python kernels/benchmarks/bench_rms_norm.py
"""

import sys

import torch

from forebay_kernels.benchmark import Case, main
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's norm of num_tokens rows."""
    x = torch.randn(num_tokens, shape.hidden_size, device=device, dtype=dtype)
    weight = torch.randn(shape.hidden_size, device=device, dtype=dtype)
    return Case((x, weight, 1e-5), bytes_moved=2 * x.nbytes + weight.nbytes)


if __name__ == "__main__":
    sys.exit(main("rms_norm", make_case))
