"""The gated feed-forward part that all supported architectures share (Shazeer 2020, arXiv:2002.05202)."""

import torch
from torch import nn

from forebay_kernels import gelu_and_mul, silu_and_mul
from forebay_server.layers.linear import Linear, PackedLinear, Slots
from forebay_server.models.model_config import Activation

ACTIVATIONS = {"silu": silu_and_mul, "gelu_tanh": gelu_and_mul}


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)).

    Args:
        hidden_size: size of the rows of x.
        intermediate_size: size of the rows between.
        activation: of the gate.
        bias: whether all three products have one.
        is_packed: whether the checkpoint holds gate and up as one matrix.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation = "silu",
        *,
        bias: bool = False,
        is_packed: bool = False,
    ) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = (
            Linear(hidden_size, 2 * intermediate_size, bias) if is_packed else PackedLinear(hidden_size, parts, bias)
        )
        self.down_proj = Linear(intermediate_size, hidden_size, bias)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        output: torch.Tensor = self.down_proj(ACTIVATIONS[self.activation](self.gate_up_proj(x)))
        return output

    def slots(self, prefix: str) -> Slots:
        """Where each weight of the checkpoint goes."""
        packed = prefix if isinstance(self.gate_up_proj, PackedLinear) else f"{prefix}.gate_up_proj"
        return self.gate_up_proj.slots(packed) | self.down_proj.slots(f"{prefix}.down_proj")
