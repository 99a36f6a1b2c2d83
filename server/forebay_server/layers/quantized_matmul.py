"""x · weightᵀ for every form of weight: the kernels where they apply, else plain torch, slow but right.

With a quantized input a token's numbers are rounded in groups of 64 or 32 on CPUs (each group its own scale, so that
one large number spoils few others) and in one group on GPUs, whose tensor cores cannot stop in the middle of a row.
"""

import torch

from forebay_kernels import fp8_matmul, quantize_per_token, w4a16_matmul, w8a8_matmul, w8a16_matmul
from forebay_kernels.dispatch import runs_triton
from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.int4_weights import Int4Weight
from forebay_kernels.int8_weights import Int8Weight
from forebay_kernels.reference.cpu import INPUT_GROUP, input_group, round_input
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_server.layers.invariant import linear
from forebay_server.layers.weight_forms import LinearWeight, QuantizedWeight


def multiply(
    x: torch.Tensor, weight: LinearWeight, bias: torch.Tensor | None, *, quantizes_input: bool
) -> torch.Tensor:
    """Apply a linear layer.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features] in any form.
        bias: [out_features], dtype of x, or None.
        quantizes_input: round x to eight bits first; plain weights take it as it is.

    Returns:
        [num_tokens, out_features], dtype of x.
    """
    if isinstance(weight, torch.Tensor):
        return linear(x, weight, bias)
    if runs_triton(x.device.type):
        return _on_gpu(x, weight, bias, quantizes_input)
    return _on_cpu(x, weight, bias, quantizes_input)


def _on_cpu(x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None, quantizes_input: bool) -> torch.Tensor:
    """What the compiled CPU step computes, in float32: the result differs from its own only by the order of sums."""
    group = INPUT_GROUP if isinstance(weight, Fp8Weight) else input_group(weight)
    rounded = round_input(x, group) if quantizes_input else x.float()
    if isinstance(weight, Int8Weight) and weight.scales.shape[1] == 1:
        output = linear(rounded, weight.values.float()) * weight.scales[:, 0]
    else:
        output = linear(rounded, weight.dequantize())
    if bias is not None:
        output = output + bias.float()
    return output.to(x.dtype)


def _on_gpu(x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None, quantizes_input: bool) -> torch.Tensor:
    if isinstance(weight, Int4Weight) and weight.mins is None:
        scales = weight.scales.to(x.dtype)
        return w4a16_matmul(x, weight.packed, scales, weight.zeros, weight.permutation, bias)
    if isinstance(weight, Fp8Weight) and (quantizes_input or weight.is_by_block):
        group_size = SCALE_BLOCK if weight.is_by_block else None
        values, scales = quantize_per_token(x, torch.float8_e4m3fn, group_size)
        return fp8_matmul(values, scales, weight.values, weight.scales, x.dtype, bias)
    if isinstance(weight, Int4Weight) or (weight.scales.dim() == 2 and weight.scales.shape[1] > 1):
        return linear(x, weight.dequantize().to(x.dtype), bias)  # groups that no GPU kernel knows
    scales = weight.scales.flatten()
    if quantizes_input:
        values, x_scales = quantize_per_token(x, torch.int8)
        return w8a8_matmul(values, x_scales, weight.values, scales, x.dtype, bias)
    return w8a16_matmul(x, weight.values, scales, bias)
