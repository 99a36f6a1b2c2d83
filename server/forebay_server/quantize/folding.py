"""Moving scale between weights without changing what a layer computes: inputs of some linear layers become easier.

A norm's weight divided by s and the columns of what reads it multiplied by s cancel; so do the rows of the up
projection and the columns of the down projection, since only a product stands between them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.linear import Linear
from forebay_server.layers.norm import RMSNorm
from forebay_server.models.decoder import DecoderLayer
from forebay_server.quantize.layer_walk import InputStatistics


@dataclass(frozen=True, slots=True)
class Fold:
    """One place where scale can move."""

    reader: Linear
    """Whose columns are multiplied."""
    statistics: InputStatistics
    divide_source: Callable[[torch.Tensor], None]
    """Divides what makes the inputs by [in_features]."""

    def apply(self, scales: torch.Tensor) -> None:
        """Move scale; the layer computes the same as before."""
        self.divide_source(scales)
        self.reader.weights = [plain(self.reader) * scales]


def folds_of(layer: DecoderLayer, statistics: Mapping[str, InputStatistics]) -> list[Fold]:
    """Where scale can move in a layer: not in front of experts, nor in layers whose norms stand elsewhere (Gemma)."""
    if type(layer).forward is not DecoderLayer.forward:
        return []
    readers = [(layer.input_layernorm, layer.self_attn.qkv_proj, "self_attn.qkv_proj")]
    if isinstance(layer.mlp, GatedMLP):
        readers.append((layer.post_attention_layernorm, layer.mlp.gate_up_proj, "mlp.gate_up_proj"))
    folds = [
        Fold(reader, statistics[name], _norm_divider(norm)) for norm, reader, name in readers if type(norm) is RMSNorm
    ]
    if isinstance(layer.mlp, GatedMLP):
        divide = _up_divider(layer.mlp.gate_up_proj)
        folds.append(Fold(layer.mlp.down_proj, statistics["mlp.down_proj"], divide))
    return folds


def plain(linear: Linear) -> torch.Tensor:
    """The weight of a layer that is not quantized yet: [out_features, in_features].

    Raises:
        TypeError: it is quantized.
    """
    weight = linear.weights[0]
    if len(linear.weights) != 1 or not isinstance(weight, torch.Tensor):
        raise TypeError("the layer is quantized already")
    return weight


def _norm_divider(norm: RMSNorm) -> Callable[[torch.Tensor], None]:
    def divide(scales: torch.Tensor) -> None:
        norm.weight.data = norm.weight.data / scales

    return divide


def _up_divider(gate_up: Linear) -> Callable[[torch.Tensor], None]:
    def divide(scales: torch.Tensor) -> None:
        weight = plain(gate_up).clone()
        half = weight.shape[0] // 2
        weight[half:] /= scales.unsqueeze(1)
        gate_up.weights = [weight]
        if gate_up.bias is not None:
            gate_up.bias.data[half:] /= scales

    return divide
