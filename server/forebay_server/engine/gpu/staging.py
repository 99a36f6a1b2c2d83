"""Host memory from which a step's inputs go to the device in one copy."""

import numpy as np
import numpy.typing as npt
import torch

_NUM_BUFFERS = 2
"""While the device still copies from one, the next step is written into the other."""
_SMALLEST_BYTES = 1 << 16


class Staging:
    """Page-locked buffers that are used in turn and grow when a step needs more.

    Args:
        device: where the inputs go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(_NUM_BUFFERS)]
        self._copied: list[torch.cuda.Event | None] = [None] * _NUM_BUFFERS
        self._turn = 0

    def begin(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Host memory for the next step: [num_bytes]; waits until the device has read what was in it before."""
        self._turn = (self._turn + 1) % _NUM_BUFFERS
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if len(self._buffers[self._turn]) < num_bytes:
            size = max(_SMALLEST_BYTES, 1 << (num_bytes - 1).bit_length())
            self._buffers[self._turn] = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_cuda)
        return self._buffers[self._turn][:num_bytes].numpy()

    def send(self, target: torch.Tensor) -> None:
        """Start the copy of what was last begun into a uint8 tensor of its size on the device; does not wait for it."""
        target.copy_(self._buffers[self._turn][: len(target)], non_blocking=True)
        if self._is_cuda:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
            self._copied[self._turn] = copied
