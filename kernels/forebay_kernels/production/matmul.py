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


def int4_launches(shape: ModelShape, dtype: torch.dtype, target: Target) -> Production:
    """Yield the product of the attention's output with weights of four bits: GPTQ's, AWQ's, and one act-order."""
    from forebay_kernels.gpu.w4a16_matmul import add_splits_launch, num_splits_of, w4a16_matmul_launch

    size = shape.hidden_size
    packed = tensor(size, size // 2, dtype=torch.uint8)
    permutation = tensor(size, dtype=torch.int32)
    num_splits = num_splits_of(packed)
    for num_tokens in (_FEW, _MANY):
        x, output = tensor(num_tokens, size, dtype=dtype), tensor(num_tokens, size, dtype=dtype)
        partial = tensor(num_splits, num_tokens, size, dtype=torch.float32)
        written = partial if num_tokens == _FEW else output
        for group_size, has_zeros, order in ((128, False, None), (128, True, None), (32, True, permutation)):
            scales = tensor(size, size // group_size, dtype=dtype)
            zeros = tensor(size, size // group_size, dtype=torch.uint8) if has_zeros else None
            name = f"by {group_size}{', zeros' if has_zeros else ''}{', permuted' if order is not None else ''}"
            launch = w4a16_matmul_launch(written, x, packed, scales, zeros, order, None, None, target=target)
            yield "w4a16_matmul", f"{num_tokens} by {size} by {size}, {name}", launch
        if num_tokens == _FEW:
            name = f"{num_tokens} by {size}, {num_splits} splits added"
            yield "w4a16_matmul", name, add_splits_launch(output, partial, None, output)
