"""QuantizationMethod: how one layer is quantized, and how the checkpoint says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from forebay_server.models.decoder import DecoderLayer
from forebay_server.quantize.layer_walk import InputStatistics

DYNAMIC_TOKENS = {"num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True, "group_size": None}


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A linear layer's weight as compressed-tensors stores it, and what it means."""

    parts: Mapping[str, torch.Tensor]
    """By the last part of the name; every tensor has a row for each output, but for zero points in words of rows."""
    meaning: torch.Tensor
    """[out_features, in_features], float32."""


class Method(Protocol):
    """One method."""

    prepares: bool
    """Whether `prepare` needs statistics."""
    corrects: bool
    """Whether `quantize` needs statistics."""
    stored_as: str
    """compressed-tensors' word for the layout: `int-quantized`."""

    def prepare(self, layer: DecoderLayer, statistics: Mapping[str, InputStatistics]) -> None:
        """Change a layer's weights, not what it computes, before they are quantized."""
        ...

    def quantize(self, weight: torch.Tensor, statistics: InputStatistics | None) -> QuantizedMatrix:
        """Quantize rows of a matrix that all read the same inputs; statistics are of the prepared layer."""
        ...

    def group(self) -> dict[str, Any]:
        """The entry of `config_groups`, without targets."""
        ...
