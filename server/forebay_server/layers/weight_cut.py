"""Cut: the part of a checkpoint's tensor that one rank takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forebay_server.layers.weight_forms import LinearWeight, concatenate, select_columns, select_rows


@dataclass(frozen=True, slots=True)
class Cut:
    """What a rank takes of a checkpoint's tensor: some ranges of rows (dim 0) or of columns (dim 1)."""

    dim: int
    ranges: tuple[tuple[int, int], ...]
    """(start, stop), in the order in which the rank holds them."""

    @property
    def size(self) -> int:
        """Rows or columns that are left."""
        return sum(stop - start for start, stop in self.ranges)

    def shape(self, full: Sequence[int]) -> tuple[int, ...]:
        """The shape that is left of a shape."""
        return (*full[: self.dim], self.size, *full[self.dim + 1 :])

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rank's part of a tensor, a copy."""
        return torch.cat([tensor.narrow(self.dim, start, stop - start) for start, stop in self.ranges], self.dim)

    def of(self, weight: LinearWeight) -> LinearWeight:
        """The rank's part of a weight in any form.

        Raises:
            ValueError: the cut goes through a group or block of numbers that share one scale.
        """
        if isinstance(weight, torch.Tensor):
            return self.of_tensor(weight)
        if self.dim == 1:
            ((start, stop),) = self.ranges
            return select_columns(weight, start, stop)
        parts = [select_rows(weight, slice(start, stop)) for start, stop in self.ranges]
        one = parts[0] if len(parts) == 1 else concatenate(parts)
        if one is None:
            raise ValueError("its parts have scales that cannot be put together")
        return one
