"""x · weightᵀ for every form of weight: the kernels where they apply, else plain torch, slow but right.

With a quantized input a token's numbers are rounded in groups of 64 or 32 on CPUs (each group its own scale, so that
one large number spoils few others) and in one group on GPUs, whose tensor cores cannot stop in the middle of a row.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """The input of a layer, rounded to eight bits by the kernel that made it."""

    values: torch.Tensor
    """[num_tokens, in_features], int8 or float8_e4m3fn."""
    scales: torch.Tensor
    """[num_tokens], float32."""
    dtype: torch.dtype
    """Of what they stand for."""


Rows = torch.Tensor | QuantizedRows


def input_dtype(weight: LinearWeight, *, quantizes_input: bool) -> torch.dtype | None:
    """To which eight bits a weight on a GPU wants a row rounded with one scale, as norms and activations can do it.

    None: it takes rows as they are, or rounds them by itself.
    """
    if not quantizes_input or isinstance(weight, torch.Tensor | Int4Weight):
        return None
    if not runs_triton(weight.values.device.type):
        return None
    if isinstance(weight, Fp8Weight):
        return None if weight.is_by_block else torch.float8_e4m3fn
    return torch.int8 if weight.scales.shape[1] == 1 else None


def multiply(x: Rows, weight: LinearWeight, bias: torch.Tensor | None, *, quantizes_input: bool) -> torch.Tensor:
    """Apply a linear layer.

    Args:
        x: [num_tokens, in_features]; rounded already only to what `input_dtype` tells.
        weight: [out_features, in_features] in any form.
        bias: [out_features], dtype of x, or None.
        quantizes_input: round x to eight bits first; plain weights take it as it is.

    Returns:
        [num_tokens, out_features], dtype of x.
    """
    if isinstance(x, QuantizedRows):
        return _eight_bits(x, weight, bias)
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
    dtype = input_dtype(weight, quantizes_input=quantizes_input)
    if dtype is not None:
        return _eight_bits(QuantizedRows(*quantize_per_token(x, dtype), x.dtype), weight, bias)
    if isinstance(weight, Fp8Weight) and weight.is_by_block:
        values, scales = quantize_per_token(x, torch.float8_e4m3fn, SCALE_BLOCK)
        return fp8_matmul(values, scales, weight.values, weight.scales, x.dtype, bias)
    if isinstance(weight, Int4Weight) or (weight.scales.dim() == 2 and weight.scales.shape[1] > 1):
        return linear(x, weight.dequantize().to(x.dtype), bias)  # groups that no GPU kernel knows
    return w8a16_matmul(x, weight.values, weight.scales.flatten(), bias)


def _eight_bits(x: QuantizedRows, weight: LinearWeight, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(weight, Fp8Weight):
        return fp8_matmul(x.values, x.scales, weight.values, weight.scales, x.dtype, bias)
    if isinstance(weight, Int8Weight):
        return w8a8_matmul(x.values, x.scales, weight.values, weight.scales.flatten(), x.dtype, bias)
    raise ValueError(f"a {type(weight).__name__} takes no rows of eight bits")
