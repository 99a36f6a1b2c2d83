"""W8A8 in int8: the nearest numbers, one scale an output; inputs are quantized by token while serving."""

from collections.abc import Mapping
from typing import Any

import torch

from forebay_kernels.int8_weights import quantize_int8
from forebay_server.models.decoder import DecoderLayer
from forebay_server.quantize.layer_walk import InputStatistics
from forebay_server.quantize.method import DYNAMIC_TOKENS, QuantizedMatrix


class Int8:
    """See `Method`."""

    prepares = corrects = False
    stored_as = "int-quantized"

    def prepare(self, layer: DecoderLayer, statistics: Mapping[str, InputStatistics]) -> None:
        """See `Method.prepare`: nothing."""

    def quantize(self, weight: torch.Tensor, statistics: InputStatistics | None) -> QuantizedMatrix:
        """See `Method.quantize`."""
        quantized = quantize_int8(weight)
        return QuantizedMatrix({"weight": quantized.values, "weight_scale": quantized.scales}, quantized.dequantize())

    def group(self) -> dict[str, Any]:
        """See `Method.group`."""
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
        return {"weights": weights, "input_activations": {**DYNAMIC_TOKENS, "type": "int"}, "output_activations": None}
