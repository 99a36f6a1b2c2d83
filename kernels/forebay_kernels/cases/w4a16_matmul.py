"""Speed of w4a16_matmul: reads x and the weight, writes the result; hidden_size by hidden_size."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.int4_weights import pack_int4
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """The projection of one layer's attention, of num_tokens rows."""
    size = shape.hidden_size
    x = torch.randn(num_tokens, size, device=device, dtype=dtype)
    # As many groups as fit: SmolLM2's 576 is no multiple of 128.
    group_size = 128 if size % 128 == 0 else 64
    packed = pack_int4(torch.randint(16, (size, size), device=device, dtype=torch.uint8), group_size)
    scales = torch.rand(size, size // group_size, device=device, dtype=dtype) * (0.2 * size**-0.5)
    arguments = (x, packed, scales)
    bytes_moved = 2 * x.nbytes + packed.nbytes + scales.nbytes
    return Case(arguments, bytes_moved=bytes_moved, flops=2 * num_tokens * size * size, tolerance=0.05)
