"""Speed of fp8_matmul: reads x and the weight, writes the result; hidden_size by hidden_size."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.reference.quantization import quantize_rows
from forebay_kernels.shapes import ModelShape


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """The projection of one layer's attention, of num_tokens rows."""
    size = shape.hidden_size
    x = torch.randn(num_tokens, size, device=device, dtype=dtype)
    weight = torch.randn(size, size, device=device) * size**-0.5
    quantized, scales = quantize_rows(weight, torch.float8_e4m3fn)
    x_quantized, x_scales = quantize_rows(x, torch.float8_e4m3fn)
    arguments = (x_quantized, x_scales, quantized, scales, dtype)
    bytes_moved = x_quantized.nbytes + x_scales.nbytes + quantized.nbytes + scales.nbytes + x.nbytes
    return Case(arguments, bytes_moved=bytes_moved, flops=2 * num_tokens * size * size, tolerance=0.05)
