"""W8A8 in FP8 (e4m3): the nearest numbers, one scale an output; inputs are quantized by token while serving."""

from typing import Any

import torch

from forebay_server.quantize.int8 import Int8
from forebay_server.quantize.layer_walk import InputStatistics
from forebay_server.quantize.method import DYNAMIC_TOKENS, QuantizedMatrix
from forebay_server.weights.convert import quantize_fp8


class Fp8(Int8):
    """See `Method`."""

    stored_as = "float-quantized"

    def quantize(self, weight: torch.Tensor, statistics: InputStatistics | None) -> QuantizedMatrix:
        """See `Method.quantize`."""
        quantized = quantize_fp8(weight)
        parts = {"weight": quantized.values, "weight_scale": quantized.scales.unsqueeze(1)}
        return QuantizedMatrix(parts, quantized.dequantize())

    def group(self) -> dict[str, Any]:
        """See `Method.group`."""
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
        inputs = {**DYNAMIC_TOKENS, "type": "float"}
        return {"weights": weights, "input_activations": inputs, "output_activations": None}
