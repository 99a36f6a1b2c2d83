"""What the C++ library for CPUs computes between quantized numbers, defined in plain PyTorch."""

import torch

from forebay_kernels.int4_weights import Int4Weight
from forebay_kernels.int8_weights import Int8Weight
from forebay_kernels.reference.quantization import quantize_rows

INPUT_GROUP = 32
"""Inputs of a row that share a scale, for weights with a scale a channel."""

MOST_INPUTS = 64
"""The same for weights with scales of groups: as many as such a group has, but no more."""


def input_group(weight: Int8Weight | Int4Weight) -> int:
    """How many inputs of a row are quantized together for this weight."""
    has_groups = isinstance(weight, Int4Weight) or weight.scales.shape[1] > 1
    return min(MOST_INPUTS, weight.group_size) if has_groups else INPUT_GROUP


def round_input(x: torch.Tensor, group: int) -> torch.Tensor:
    """Quantize each `group` numbers of each row to int8 and back: [num_tokens, in_features], float32."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % group))
    values, scales = quantize_rows(padded.reshape(x.shape[0], -1, group), torch.int8)
    return (values.float() * scales.unsqueeze(2)).reshape(x.shape[0], -1)[:, : x.shape[1]]


def quantized_linear(x: torch.Tensor, weight: Int8Weight | Int4Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """The rounded x times the transpose of the weight, plus bias.

    Scales of groups are rounded to float16, as GGUF holds them.

    Args:
        x: [num_tokens, in_features], any float dtype.
        weight: [out_features, in_features].
        bias: [out_features] or None.

    Returns:
        [num_tokens, out_features], float32, of float64 sums.
    """
    rounded = round_input(x, input_group(weight)).double()
    output = rounded @ _with_half_scales(weight).dequantize().double().T
    return (output if bias is None else output + bias.double()).float()


def _with_half_scales(weight: Int8Weight | Int4Weight) -> Int8Weight | Int4Weight:
    if isinstance(weight, Int4Weight):
        mins = None if weight.mins is None else weight.mins.half()
        return Int4Weight(weight.packed, weight.scales.half(), weight.zeros, weight.permutation, mins)
    return weight if weight.scales.shape[1] == 1 else Int8Weight(weight.values, weight.scales.half().float())
