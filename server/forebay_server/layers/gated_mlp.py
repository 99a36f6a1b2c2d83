"""The gated feed-forward part that all supported architectures share (Shazeer 2020, arXiv:2002.05202)."""

import torch
from torch import nn

from forebay_kernels import gelu_and_mul, gelu_and_mul_quantize, silu_and_mul, silu_and_mul_quantize
from forebay_server.layers.linear import Linear, Slots
from forebay_server.layers.parallel_linear import ColumnParallelLinear, RowParallelLinear
from forebay_server.layers.quantized_matmul import QuantizedRows, Rows
from forebay_server.models.model_config import Activation
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.shares import even_share

ACTIVATIONS = {"silu": silu_and_mul, "gelu_tanh": gelu_and_mul}
_QUANTIZED = {"silu": silu_and_mul_quantize, "gelu_tanh": gelu_and_mul_quantize}
"""The same, rounded to eight bits."""


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)).

    Args:
        hidden_size: size of the rows of x.
        intermediate_size: size of the rows between.
        activation: of the gate.
        bias: whether all three products have one.
        is_packed: whether the checkpoint holds gate and up as one matrix.
        group: the ranks that share it.
        is_summed: whether the ranks' outputs are summed here; otherwise the caller must.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation = "silu",
        *,
        bias: bool = False,
        is_packed: bool = False,
        group: RankGroup = ONE_RANK,
        is_summed: bool = True,
    ) -> None:
        super().__init__()
        share = even_share(intermediate_size, group.rank, group.size)
        parts = {"gate_proj": share, "up_proj": share}
        self.gate_up_proj = ColumnParallelLinear(hidden_size, parts, bias, "gate_up_proj" if is_packed else None)
        self.down_proj = RowParallelLinear(share, hidden_size, bias, group, is_summed=is_summed)
        self.activation = activation

    @property
    def reader(self) -> Linear | None:
        """The one layer that reads x."""
        return self.gate_up_proj

    def forward(self, x: Rows) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        output: torch.Tensor = self.down_proj(self._activated(self.gate_up_proj(x)))
        return output

    def _activated(self, gate_up: torch.Tensor) -> Rows:
        dtype = self.down_proj.input_dtype
        if dtype is None:
            return ACTIVATIONS[self.activation](gate_up)
        return QuantizedRows(*_QUANTIZED[self.activation](gate_up, dtype), gate_up.dtype)

    def slots(self, prefix: str) -> Slots:
        """Where each weight of the checkpoint goes."""
        return self.gate_up_proj.slots(prefix) | self.down_proj.slots(f"{prefix}.down_proj")
