"""One projection of every expert of a mixture as one linear layer, whose weight has the rows of all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.int4_weights import Int4Weight
from forebay_kernels.int8_weights import Int8Weight
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_server.layers.linear import Linear, Slots, WeightSlot
from forebay_server.layers.quantized_matmul import multiply
from forebay_server.layers.weight_cut import Cut
from forebay_server.layers.weight_forms import select_rows


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """One projection of every expert, as `fused_moe` takes it."""

    values: torch.Tensor
    """[num_experts, out_features, in_features]; of four bits: uint8, half as long."""
    scales: torch.Tensor | None
    """Of values that are quantized: one a channel, a group of it, or a block of 128 by 128."""
    quantizes_input: bool
    """Whether what is multiplied with values is rounded to their dtype first."""
    zeros: torch.Tensor | None = None
    """Of values of four bits, by group; None: 8."""

    def is_like(self, other: "ExpertStack") -> bool:
        """Whether one call of `fused_moe` takes both."""
        dims = [None if stack.scales is None else stack.scales.dim() for stack in (self, other)]
        return (
            self.values.dtype == other.values.dtype
            and self.quantizes_input == other.quantizes_input
            and dims[0] == dims[1]
        )


class ExpertsLinear(Linear):
    """The same projection of many experts; each multiplies the rows that are given to it.

    Args:
        num_experts: as the checkpoint has.
        part_names: how it calls what each expert's weight is made of, in the order of the output.
        full_shape: [out_features, in_features] of one part of one expert in the checkpoint.
        cut: what this rank holds of each part.
    """

    def __init__(self, num_experts: int, part_names: Sequence[str], full_shape: tuple[int, int], cut: Cut) -> None:
        rows, in_features = cut.shape(full_shape)
        self.num_experts, self.rows_of_expert = num_experts, rows * len(part_names)
        super().__init__(in_features, num_experts * self.rows_of_expert)
        self._full_shape, self._cut = full_shape, cut
        self.parts = {f"{expert}.{name}": rows for expert in range(num_experts) for name in part_names}

    def of_expert(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[num_rows, in_features] -> [num_rows, rows_of_expert]."""
        if len(self.weights) == 1:
            first_row = expert * self.rows_of_expert
            weights = [select_rows(self.weights[0], slice(first_row, first_row + self.rows_of_expert))]
        else:
            parts_of_expert = len(self.weights) // self.num_experts
            weights = self.weights[expert * parts_of_expert : (expert + 1) * parts_of_expert]
        products = [multiply(x, weight, None, quantizes_input=self.quantizes_input) for weight in weights]
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)

    def stacked(self) -> "ExpertStack | None":
        """All experts' weights as `fused_moe` takes them; None: they have a form that it does not know."""
        if len(self.weights) > 1:
            return None
        weight, rows = self.weights[0], (self.num_experts, self.rows_of_expert)
        if isinstance(weight, torch.Tensor):
            return ExpertStack(weight.view(*rows, -1), None, quantizes_input=False)
        if isinstance(weight, Int8Weight) and weight.scales.shape[1] == 1:
            return ExpertStack(weight.values.view(*rows, -1), weight.scales.view(rows), self.quantizes_input)
        if isinstance(weight, Int4Weight) and weight.mins is None and weight.permutation is None:
            groups = (*rows, -1)
            zeros = None if weight.zeros is None else weight.zeros.view(groups)
            return ExpertStack(
                weight.packed.view(groups), weight.scales.view(groups), quantizes_input=False, zeros=zeros
            )
        if not isinstance(weight, Fp8Weight):
            return None
        values = weight.values.view(*rows, -1)
        if not weight.is_by_block:
            return ExpertStack(values, weight.scales.expand(len(weight.values)).reshape(rows), self.quantizes_input)
        if self.rows_of_expert % SCALE_BLOCK or self.in_features % SCALE_BLOCK:
            return None
        blocks = (self.num_experts, self.rows_of_expert // SCALE_BLOCK, -1)
        return ExpertStack(values, weight.scales.view(blocks), quantizes_input=True)

    def slots(self, prefix: str) -> Slots:
        """See `Linear.slots`; `prefix` is the parent of the experts."""
        return {f"{prefix}.{part}.weight": WeightSlot(self, part, self._full_shape, self._cut) for part in self.parts}
