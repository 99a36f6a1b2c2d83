"""Linear layers that know under which names a checkpoint holds their parts."""

from collections.abc import Mapping

import torch
from torch import nn


class Linear(nn.Module):
    """y = x Wᵀ + b. Memory is allocated, not filled.

    Args:
        in_features: size of the rows of x.
        out_features: size of the rows of y.
        bias: whether there is a b.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features]."""
        return nn.functional.linear(x, self.weight, self.bias)

    def slots(self, prefix: str) -> dict[str, torch.Tensor]:
        """Where each weight of the checkpoint goes: views by name."""
        slots = {f"{prefix}.weight": self.weight.data}
        if self.bias is not None:
            slots[f"{prefix}.bias"] = self.bias.data
        return slots


class PackedLinear(Linear):
    """Several linear layers with the same input as one product (q, k, v; gate, up).

    Args:
        in_features: size of the rows of x.
        parts: rows of each part by its name in the checkpoint, in the order of the output's columns.
        bias: whether every part has one.
    """

    def __init__(self, in_features: int, parts: Mapping[str, int], bias: bool = False) -> None:
        super().__init__(in_features, sum(parts.values()), bias)
        self.parts = dict(parts)

    def slots(self, prefix: str) -> dict[str, torch.Tensor]:
        """See `Linear.slots`; `prefix` is the parent of the parts."""
        slots = {}
        sizes = list(self.parts.values())
        for name, rows in zip(self.parts, torch.split(self.weight.data, sizes), strict=True):
            slots[f"{prefix}.{name}.weight"] = rows
        if self.bias is not None:
            for name, values in zip(self.parts, torch.split(self.bias.data, sizes), strict=True):
                slots[f"{prefix}.{name}.bias"] = values
        return slots
