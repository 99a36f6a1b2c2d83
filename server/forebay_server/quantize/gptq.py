"""GPTQ: four-bit weights column by column; the error of each is made good by the columns that are still to come.

Frantar et al. 2022, arXiv:2210.17323, algorithm 1, without reordering, so that serving needs none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from forebay_server.models.decoder import DecoderLayer
from forebay_server.quantize.layer_walk import InputStatistics
from forebay_server.quantize.method import QuantizedMatrix
from forebay_server.quantize.packed_int4 import packed

_DAMPING = 0.01
"""Share of the mean diagonal that is added to it, so that the inverse exists."""
_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Gptq:
    """See `Method`."""

    group_size: int
    prepares, corrects = False, True
    stored_as = "pack-quantized"

    def prepare(self, layer: DecoderLayer, statistics: Mapping[str, InputStatistics]) -> None:
        """See `Method.prepare`: nothing."""

    def quantize(self, weight: torch.Tensor, statistics: InputStatistics | None) -> QuantizedMatrix:
        """See `Method.quantize`.

        Raises:
            ValueError: there are no statistics.
        """
        if statistics is None:
            raise ValueError("GPTQ needs calibration prompts")
        weight = weight.float().clone()
        inverse = _inverse_root(statistics.products)
        numbers = torch.zeros_like(weight)
        scales = torch.zeros(weight.shape[0], weight.shape[1] // self.group_size)
        for start in range(0, weight.shape[1], _BLOCK):
            stop = min(start + _BLOCK, weight.shape[1])
            errors = torch.zeros(weight.shape[0], stop - start)
            for column in range(start, stop):
                if column % self.group_size == 0:
                    scales[:, column // self.group_size] = _scales(weight[:, column : column + self.group_size])
                scale = scales[:, column // self.group_size]
                numbers[:, column] = (weight[:, column] / scale).round().clamp(-8, 7)
                error = (weight[:, column] - numbers[:, column] * scale) / inverse[column, column]
                weight[:, column + 1 : stop] -= error.unsqueeze(1) * inverse[column, column + 1 : stop]
                errors[:, column - start] = error
            weight[:, stop:] -= errors @ inverse[start:stop, stop:]
        return packed(numbers.to(torch.int8), scales.bfloat16(), None)

    def group(self) -> dict[str, Any]:
        """See `Method.group`."""
        return {"weights": int4_weights(self.group_size, symmetric=True), "input_activations": None,
                "output_activations": None}  # fmt: skip


def int4_weights(group_size: int, *, symmetric: bool) -> dict[str, Any]:
    """The `weights` of a group of four bits."""
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group_size}
    return {**weights, "dynamic": False, "actorder": None}


def _inverse_root(products: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the inverse of the damped products; inputs that were always 0 count as 1."""
    damped = products.clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += _DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor


def _scales(group: torch.Tensor) -> torch.Tensor:
    """[out_features, group_size] -> [out_features]: of the least squared error among a few, bfloat16's numbers."""
    largest = group.abs().amax(1).clamp(min=1e-8)
    best, best_error = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for step in range(10):
        scale = (largest * (1 - 0.04 * step) / 7.5).bfloat16().float()
        rounded = (group / scale.unsqueeze(1)).round().clamp(-8, 7) * scale.unsqueeze(1)
        error = (rounded - group).square().sum(1)
        best = torch.where(error < best_error, scale, best)
        best_error = torch.minimum(error, best_error)
    return best
