"""Brings what a step sampled to the host, without waiting for the device until it is asked for."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

_NUM_BUFFERS = 2
"""While one step's tokens are waited for, the step after it writes into the other."""
_SMALLEST_ROWS = 256

Sampled = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Token ids and log-probabilities, each [num_rows]."""


class Readback:
    """Page-locked buffers that are used in turn and grow when a step needs more.

    Args:
        device: where the tokens are.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._buffers = [self._buffer(0) for _ in range(_NUM_BUFFERS)]
        self._turn = 0

    def start(self, token_ids: torch.Tensor, logprobs: torch.Tensor) -> Callable[[], Sampled]:
        """Start the copies of a step's results; returns what waits for them.

        Args:
            token_ids: [num_rows], int64, on the device.
            logprobs: [num_rows], float32.

        Returns:
            To be called before the step after the next one is started, which writes over the result.
        """
        num_rows = len(token_ids)
        self._turn = (self._turn + 1) % _NUM_BUFFERS
        if len(self._buffers[self._turn][0]) < num_rows:
            self._buffers[self._turn] = self._buffer(max(_SMALLEST_ROWS, 2 * num_rows))
        ids, scores = (buffer[:num_rows] for buffer in self._buffers[self._turn])
        ids.copy_(token_ids, non_blocking=True)
        scores.copy_(logprobs, non_blocking=True)
        done = None
        if self._is_cuda:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()

        def wait() -> Sampled:
            if done is not None:
                done.synchronize()
            return ids.numpy(), scores.numpy()

        return wait

    def _buffer(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = ((torch.int64, num_rows), (torch.float32, num_rows))
        ids, scores = (torch.empty(size, dtype=dtype, pin_memory=self._is_cuda) for dtype, size in sizes)
        return ids, scores
