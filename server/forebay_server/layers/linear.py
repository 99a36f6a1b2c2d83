"""Linear layers that know under which names a checkpoint holds their parts, and hold weights in any form."""

from dataclasses import dataclass

import torch
from torch import nn

from forebay_server.layers.quantized_matmul import Rows, input_dtype, multiply
from forebay_server.layers.weight_cut import Cut
from forebay_server.layers.weight_forms import LinearWeight, concatenate


class Linear(nn.Module):
    """y = x Wᵀ + b. The weight comes with `WeightSlot.fill`; memory for the bias is allocated, not filled.

    Args:
        in_features: size of the rows of x.
        out_features: size of the rows of y.
        bias: whether there is a b.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self.parts: dict[str, int] = {"": out_features}
        self.weights: list[LinearWeight] = []
        """One weight with all rows; or one a part, where the parts have different forms. Empty until filled."""
        self.is_quantizable = True
        """Whether `--quantization` may convert it; false for the routers of experts, which decide much."""
        self.quantizes_input = False
        """Whether x is rounded to eight bits before it meets a quantized weight."""
        self._arrived: dict[str, LinearWeight] = {}

    @property
    def input_dtype(self) -> torch.dtype | None:
        """See `quantized_matmul.input_dtype`; of parts in different forms none."""
        if len(self.weights) != 1:
            return None
        return input_dtype(self.weights[0], quantizes_input=self.quantizes_input)

    def forward(self, x: Rows) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features]."""
        if len(self.weights) == 1:
            return multiply(x, self.weights[0], self.bias, quantizes_input=self.quantizes_input)
        parts = [multiply(x, weight, None, quantizes_input=self.quantizes_input) for weight in self.weights]
        output = torch.cat(parts, dim=1)
        return output if self.bias is None else output + self.bias

    def set_part(self, part: str, weight: LinearWeight) -> None:
        """Take the weight of one part; when all are there they become one, if their forms allow."""
        self._arrived[part] = weight
        if len(self._arrived) < len(self.parts):
            return
        arrived = [self._arrived[name] for name in self.parts]
        self._arrived = {}
        one = arrived[0] if len(arrived) == 1 else concatenate(arrived)
        self.weights = arrived if one is None else [one]

    def slots(self, prefix: str) -> "Slots":
        """Where each weight of the checkpoint goes, by name."""
        slots: Slots = {f"{prefix}.weight": WeightSlot(self, "", (self.out_features, self.in_features))}
        if self.bias is not None:
            slots[f"{prefix}.bias"] = self.bias.data
        return slots


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Where the weight of a linear layer, of a part of one, or of an embedding goes; it may arrive in any form."""

    layer: "Linear"
    part: str
    shape: tuple[int, int]
    """[out_features, in_features], as the checkpoint has it."""
    cut: Cut | None = None
    """What this rank holds of it; None: all."""

    @property
    def held_shape(self) -> tuple[int, ...]:
        """[out_features, in_features], as this rank has it."""
        return self.shape if self.cut is None else self.cut.shape(self.shape)

    @property
    def has_part_of_columns(self) -> bool:
        """Whether this rank holds some of the columns only."""
        return self.held_shape[1] < self.shape[1]

    def part_of(self, weight: LinearWeight) -> LinearWeight:
        """What this rank holds of the checkpoint's weight.

        Raises:
            ValueError: it cannot be cut out of a weight of this form.
        """
        return weight if self.cut is None else self.cut.of(weight)

    def fill(self, weight: LinearWeight, *, quantizes_input: bool) -> None:
        """Give the layer what this rank holds of the weight."""
        self.layer.quantizes_input |= quantizes_input
        self.layer.set_part(self.part, weight)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where a rank's part of a tensor goes that is never quantized: a bias."""

    target: torch.Tensor
    """Written in place."""
    shape: tuple[int, ...]
    """As the checkpoint has it."""
    cut: Cut

    @property
    def held_shape(self) -> tuple[int, ...]:
        """As this rank has it."""
        return tuple(self.target.shape)

    def copy_(self, values: torch.Tensor) -> None:
        """Take the rank's part of a tensor of the checkpoint."""
        self.target.copy_(self.cut.of_tensor(values))


Slots = dict[str, torch.Tensor | TensorSlot | WeightSlot]
"""Where each weight of a checkpoint goes: a tensor to copy into, or a slot that takes any form."""
