"""Production launches of the matrix products with quantized weights: few tokens and many, of one 8B model's layer."""

import torch

from forebay_kernels.production.tensors import Production, tensor
from forebay_kernels.shapes import ModelShape
from forebay_kernels.targets import Target

_FEW, _MANY = 16, 4096


def matmul_launches(shape: ModelShape, dtype: torch.dtype, target: Target) -> Production:
    """Yield the product of the attention's output, hidden_size by hidden_size, in each format."""
    from forebay_kernels.gpu.scaled_matmul import scaled_matmul_launch

    size = shape.hidden_size
    by_channel, by_tensor = (tensor(channels, dtype=torch.float32) for channels in (size, 1))
    by_block = tensor(size // 128, size // 128, dtype=torch.float32)
    for num_tokens in (_FEW, _MANY):
        output = tensor(num_tokens, size, dtype=dtype)
        by_token = tensor(num_tokens, dtype=torch.float32)
        by_token_and_block = tensor(num_tokens, size // 128, dtype=torch.float32)
        for kernel, name, x_dtype, x_scales, weight_dtype, weight_scales in (
            ("w8a8_matmul", "", torch.int8, by_token, torch.int8, by_channel),
            ("fp8_matmul", ", tensor", torch.float8_e4m3fn, by_token, torch.float8_e4m3fn, by_tensor),
            ("fp8_matmul", ", channel", torch.float8_e4m3fn, by_token, torch.float8_e4m3fn, by_channel),
            ("fp8_matmul", ", block", torch.float8_e4m3fn, by_token_and_block, torch.float8_e4m3fn, by_block),
            ("w8a16_matmul", ", int8", dtype, None, torch.int8, by_channel),
            ("w8a16_matmul", ", fp8", dtype, None, torch.float8_e4m3fn, by_channel),
        ):
            x, weight = tensor(num_tokens, size, dtype=x_dtype), tensor(size, size, dtype=weight_dtype)
            launch = scaled_matmul_launch(
                output, x, x_scales, weight, weight_scales, None, output if name != ", tensor" else None, target=target
            )
            yield kernel, f"{num_tokens} by {size} by {size}{name}", launch
