"""All ranks of a model as threads of the test, so that their sums and gathers can be watched without processes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier, BrokenBarrierError
from typing import TypeVar

import torch

Result = TypeVar("Result")


class _Meeting:
    """Where the threads put what they have and find what the others have."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size)
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size


class ThreadGroup:
    """One rank's end of a meeting of threads."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank, self.size, self._meeting = rank, size, meeting

    def _all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        meeting = self._meeting
        meeting.parts[self.rank] = mine.clone()
        meeting.barrier.wait(60)
        parts = list(meeting.parts)
        meeting.barrier.wait(60)
        return parts

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(partial)).sum(0)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        parts = self._all(part)
        return parts if self.rank == 0 else []


def on_all_ranks(size: int, work: Callable[[ThreadGroup], Result]) -> list[Result]:
    """What `work` returns on every rank; an exception of one is raised here, and ends the others."""
    meeting = _Meeting(size)

    def run(rank: int) -> Result:
        with ExitStack() as stack:
            stack.callback(meeting.barrier.abort)
            result = work(ThreadGroup(rank, size, meeting))
            stack.pop_all()
            return result

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
