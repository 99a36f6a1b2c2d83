"""Ranks that are processes: sums, gathers and messages through torch.distributed, gloo on CPUs and NCCL on GPUs."""

from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from forebay_server.parallel.stages import Stage

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

    def connect(self, store_path: str, name: str, device: torch.device) -> None:
        """Meet the others.

        Args:
            store_path: a file that all ranks can write.
            name: of this group, among those that meet in the file.
            device: on which the tensors will lie.

        Raises:
            RuntimeError: they do not come.
        """
        self._backend = _connect(store_path, name, self.rank, self.size, device)

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


class StageLink:
    """From one rank to those at its place in the stages before and after: hidden states go one way.

    Both ends know the shapes from the step, so nothing but the numbers is sent.

    Args:
        stage: of this rank.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._backend: Any = None
        self._sending: deque[tuple[Any, torch.Tensor]] = deque()
        """What may be on its way, and must stay as it is."""

    def connect(self, store_path: str, name: str, device: torch.device) -> None:
        """See `ProcessGroup.connect`."""
        self._backend = _connect(store_path, name, self._stage.index, self._stage.count, device)

    def send(self, hidden: torch.Tensor) -> None:
        """Give the next stage what it waits for; returns before it has it, unless it is far behind."""
        while len(self._sending) >= 2 * self._stage.count:
            self._sending.popleft()[0].wait()
        hidden = hidden.contiguous()
        self._sending.append((self._backend.send([hidden], self._stage.index + 1, 0), hidden))

    def receive(self, hidden: torch.Tensor) -> torch.Tensor:
        """Take the next tensor of the stage before, in the order in which they were sent; written in place."""
        self._backend.recv([hidden], self._stage.index - 1, 0).wait()
        return hidden


def _connect(store_path: str, name: str, rank: int, size: int, device: torch.device) -> Any:
    """A backend of torch.distributed: an object of its own, so that several engines fit into one process."""
    distributed: Any = dist
    store = distributed.PrefixStore(name, distributed.FileStore(store_path, -1))
    if device.type == "cuda":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return distributed.ProcessGroupNCCL(store, rank, size, options)
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface="lo")]
    options._timeout = TIMEOUT
    return gloo(store, rank, size, options)
