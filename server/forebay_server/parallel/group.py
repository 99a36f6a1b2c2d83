"""What layers need of the ranks that share a model, and the group of one."""

from typing import Protocol

import torch


class RankGroup(Protocol):
    """The ranks that share each layer. All of them call the same methods in the same order."""

    rank: int
    """0 to size - 1."""
    size: int

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, the same bits on each; may be computed in place."""
        ...

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """On rank 0 the parts of all ranks, which have one shape; elsewhere nothing."""
        ...


class OneRank:
    """A model that is not split."""

    rank = 0
    size = 1

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """See `RankGroup.all_reduce`."""
        return partial

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """See `RankGroup.gather`."""
        return [part]


ONE_RANK = OneRank()
