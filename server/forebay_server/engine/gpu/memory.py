"""A GPU's memory: waiting for what a dying neighbour still holds, and what everything of a step takes of it."""

import logging
import time
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 60.0
_PATIENCE_SECONDS = 3.0
"""When no memory came free for so long, none will."""
_POLL_SECONDS = 0.25
_USUAL_SHARE = 0.9
"""Of a GPU that nobody else uses so much is free: the rest is the driver's and this process's context."""


def wait_for_memory(device: torch.device, wanted_bytes: int | None) -> None:
    """Wait while a neighbour that ends still gives memory back: the pod before this one, or an engine that was killed.

    Args:
        device: nothing is waited for unless it is a GPU.
        wanted_bytes: that shall be free, if a GPU without neighbours has so many; None: as many as it has.
    """
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    wanted = min(int(total * _USUAL_SHARE), total if wanted_bytes is None else wanted_bytes)
    if free < wanted:
        logger.info("%d bytes of the GPU are free, %d are wanted: waiting for a neighbour to end", free, wanted)
        free = settled(lambda: torch.cuda.mem_get_info(device)[0], wanted)
        logger.info("%d bytes of the GPU are free now", free)


def settled(
    read: Callable[[], int],
    wanted: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Free bytes once they suffice, no longer grow, or `LONGEST_WAIT_SECONDS` are over.

    Args:
        read: free bytes now.
        wanted: that suffice.
        clock: seconds.
        sleep: for seconds.
    """
    most, started = read(), clock()
    grown = started
    while most < wanted and clock() - grown < _PATIENCE_SECONDS and clock() - started < LONGEST_WAIT_SECONDS:
        sleep(_POLL_SECONDS)
        free = read()
        if free > most:
            most, grown = free, clock()
    return most


class UsedMemory:
    """What is taken of a GPU from now on: by torch's allocator, by CUDA graphs, by libraries and compiled kernels.

    The allocator keeps what it once took, so the device's own count afterwards is that of the fullest moment. What the
    allocator had left over from loading is given back before, so that it hides nothing.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        self._allocated = torch.cuda.memory_allocated(device)
        self._free = torch.cuda.mem_get_info(device)[0]

    def peak_bytes(self) -> int:
        """The most so far: at least what the allocator counts, at least what the device misses."""
        torch.cuda.synchronize(self._device)
        allocated = torch.cuda.max_memory_allocated(self._device) - self._allocated
        missing = self._free - torch.cuda.mem_get_info(self._device)[0]
        return int(max(allocated, missing, 0))

    def give_back(self) -> None:
        """Return what the allocator holds and nobody uses."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
