"""Ranks that are processes: sums and gathers through torch.distributed, gloo on CPUs and NCCL on GPUs."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

ONE_SHOT_BYTES = 256 * 1024
"""Up to here every rank sends its part to every other and adds them itself: one message instead of two rounds."""
TIMEOUT = timedelta(minutes=5)
"""A rank that does not come to a sum for so long has failed; whoever watches the engine gives up sooner."""


class ProcessGroup:
    """See `RankGroup`. It connects later than it is made, so that ranks read their weights meanwhile.

    Args:
        rank: of this process.
        size: processes in all.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._backend: Any = None

    def connect(self, store_path: str, device: torch.device) -> None:
        """Meet the others.

        Args:
            store_path: a file that all ranks can write, new for this group.
            device: on which the tensors will lie.

        Raises:
            RuntimeError: they do not come.
        """
        distributed: Any = dist
        store = distributed.FileStore(store_path, self.size)
        if device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            self._backend = distributed.ProcessGroupNCCL(store, self.rank, self.size, options)
        else:
            gloo = distributed.ProcessGroupGloo
            options = gloo._Options()
            options._devices = [gloo.create_device(interface="lo")]
            options._timeout = TIMEOUT
            self._backend = gloo(store, self.rank, self.size, options)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """See `RankGroup.all_reduce`. Small tensors are summed in float32, in the order of ranks, and rounded once."""
        partial = partial.contiguous()
        if partial.nbytes > ONE_SHOT_BYTES:
            self._backend.allreduce([partial]).wait()
            return partial
        parts = [torch.empty_like(partial) for _ in range(self.size)]
        self._backend.allgather([parts], [partial]).wait()
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(partial.dtype)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """See `RankGroup.gather`."""
        part = part.contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [[torch.empty_like(part) for _ in range(self.size)]] if self.rank == 0 else []
        self._backend.gather(parts, [part], options).wait()
        return parts[0] if parts else []

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `RankGroup.broadcast`."""
        tensor = tensor.contiguous()
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._backend.broadcast([tensor], options).wait()
        return tensor
