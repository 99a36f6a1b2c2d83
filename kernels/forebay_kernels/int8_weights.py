"""Weights of eight bits: signed numbers with one scale for each output channel or for each group of a channel."""

from dataclasses import dataclass

import torch

from forebay_kernels.reference.quantization import quantize_rows


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight whose number k of a row means values[row, k] * scales[row, k // group_size]."""

    values: torch.Tensor
    """[out_features, in_features], int8."""
    scales: torch.Tensor
    """[out_features, num_groups], float32; num_groups divides in_features, 1: one scale a channel."""

    @property
    def group_size(self) -> int:
        """In_features that share a scale."""
        return self.values.shape[1] // self.scales.shape[1]

    def dequantize(self) -> torch.Tensor:
        """[out_features, in_features], float32."""
        num_groups = self.scales.shape[1]
        groups = self.values.float().reshape(len(self.values), num_groups, -1)
        dequantized: torch.Tensor = groups * self.scales.unsqueeze(2)
        return dequantized.flatten(1)


def quantize_int8(weight: torch.Tensor, group_size: int | None = None) -> Int8Weight:
    """Quantize [out_features, in_features] of any float dtype, symmetrically, to the nearest.

    Args:
        weight: any float dtype.
        group_size: in_features that share a scale; None: all of a channel.

    Raises:
        ValueError: group_size does not divide in_features.
    """
    in_features = weight.shape[1]
    if group_size is None:
        group_size = in_features
    if group_size < 1 or in_features % group_size:
        raise ValueError(f"group_size: expected a divisor of in_features {in_features}, got {group_size}")
    values, scales = quantize_rows(weight.reshape(len(weight), -1, group_size), torch.int8)
    return Int8Weight(values.flatten(1), scales)
