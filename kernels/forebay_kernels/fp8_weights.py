"""Weights of eight bits with an exponent (float8_e4m3fn): the form that `fp8_matmul` reads, and what it means."""

from dataclasses import dataclass

import torch

from forebay_kernels.reference.matmul import SCALE_BLOCK


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """The arguments of `fp8_matmul` that describe a weight: a number means number * its scale."""

    values: torch.Tensor
    """[out_features, in_features], float8_e4m3fn."""
    scales: torch.Tensor
    """float32: [1] (tensor), [out_features] (channel), [ceil(out_features / 128), ceil(in_features / 128)] (block)."""

    @property
    def is_by_block(self) -> bool:
        """Whether each 128 by 128 numbers share a scale."""
        return self.scales.dim() == 2

    def dequantize(self) -> torch.Tensor:
        """[out_features, in_features], float32."""
        if not self.is_by_block:
            return self.values.float() * self.scales.unsqueeze(1)
        rows, columns = self.values.shape
        expanded = self.scales.repeat_interleave(SCALE_BLOCK, 0)[:rows].repeat_interleave(SCALE_BLOCK, 1)[:, :columns]
        return self.values.float() * expanded
