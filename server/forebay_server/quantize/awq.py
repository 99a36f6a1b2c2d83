"""AWQ: inputs that are large on average get finer weights, by as much as costs the least on the calibration prompts.

Lin et al. 2023, arXiv:2306.00978: scales are the mean magnitude to a power, found by trying.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from forebay_server.models.decoder import DecoderLayer
from forebay_server.quantize.folding import Fold, folds_of, plain
from forebay_server.quantize.gptq import int4_weights
from forebay_server.quantize.layer_walk import InputStatistics
from forebay_server.quantize.method import QuantizedMatrix
from forebay_server.quantize.packed_int4 import packed

_POWERS = tuple(step / 20 for step in range(20))
_SMALLEST = 1e-4


@dataclass(frozen=True, slots=True)
class Awq:
    """See `Method`."""

    group_size: int
    prepares, corrects = True, False
    stored_as = "pack-quantized"

    def prepare(self, layer: DecoderLayer, statistics: Mapping[str, InputStatistics]) -> None:
        """See `Method.prepare`."""
        for fold in folds_of(layer, statistics):
            fold.apply(self._best_scales(fold))

    def quantize(self, weight: torch.Tensor, statistics: InputStatistics | None) -> QuantizedMatrix:
        """See `Method.quantize`: the range of each group, ends included, in 16 steps."""
        groups = weight.float().view(weight.shape[0], -1, self.group_size)
        low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scales = ((high - low) / 15).clamp(min=1e-8).bfloat16()
        zeros = (-8 - low / scales.float()).round().clamp(-8, 7)
        numbers = (groups / scales.float().unsqueeze(2) + zeros.unsqueeze(2)).round().clamp(-8, 7)
        return packed(numbers.flatten(1).to(torch.int8), scales, zeros.to(torch.int8))

    def group(self) -> dict[str, Any]:
        """See `Method.group`."""
        return {"weights": int4_weights(self.group_size, symmetric=False), "input_activations": None,
                "output_activations": None}  # fmt: skip

    def _best_scales(self, fold: Fold) -> torch.Tensor:
        weight = plain(fold.reader).float()
        best, best_error = torch.ones(weight.shape[1]), float("inf")
        for power in _POWERS:
            scales = fold.statistics.mean.clamp(min=_SMALLEST).pow(power)
            scales = scales / (scales.max() * scales.min()).sqrt()
            difference = self.quantize(weight * scales, None).meaning / scales - weight
            # the squared error of the outputs, summed over tokens: trace(D XᵀX Dᵀ)
            error = float(((difference @ fold.statistics.products) * difference).sum())
            if error < best_error:
                best, best_error = scales, error
        return best
