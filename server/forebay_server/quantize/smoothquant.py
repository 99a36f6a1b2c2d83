"""SmoothQuant: inputs with large channels hand some of their size to the weights, then both fit eight bits.

Xiao et al. 2022, arXiv:2211.10438, equation 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_server.models.decoder import DecoderLayer
from forebay_server.quantize.folding import folds_of, plain
from forebay_server.quantize.int8 import Int8
from forebay_server.quantize.layer_walk import InputStatistics

_SMALLEST = 1e-5


@dataclass(frozen=True, slots=True)
class SmoothQuant(Int8):
    """See `Method`."""

    strength: float = 0.5
    """Share of the difficulty that goes to the weights: 0 none, 1 all."""
    prepares = True

    def prepare(self, layer: DecoderLayer, statistics: Mapping[str, InputStatistics]) -> None:
        """See `Method.prepare`."""
        for fold in folds_of(layer, statistics):
            inputs = fold.statistics.largest.clamp(min=_SMALLEST)
            weights = plain(fold.reader).float().abs().amax(0).clamp(min=_SMALLEST)
            scales = inputs.pow(self.strength) / weights.pow(1 - self.strength)
            fold.apply((scales / scales.log().mean().exp()).clamp(min=_SMALLEST))
