"""Capturing work into CUDA graphs: one replay starts hundreds of kernels at the cost of one."""

from collections.abc import Callable
from typing import Protocol

import torch

from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.models.decoder import CausalLM


class Replay(Protocol):
    """Work that was captured: called again, it reads and writes the same memory as it did then."""

    def __call__(self) -> None:
        """Start the work on the current stream; does not wait for it."""
        ...


Capture = Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]
"""Records what a function does on the device, without doing it: the replay, and the tensor that each replay fills."""


class CudaCapture:
    """Captures into graphs that share one pool of memory, since only one of them runs at a time.

    What is captured must have run before: the first run compiles kernels and picks algorithms, which no graph can hold.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
        """See `Capture`."""
        graph = torch.cuda.CUDAGraph()
        # other threads (grammars, the Mailbox) may call CUDA meanwhile: only this thread's calls are recorded
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = work()
        return graph.replay, output


def cuda_capture(model: CausalLM, device: torch.device) -> Capture | None:
    """What makes graphs of this model's decode steps; None where no graph can hold one.

    The host looks which experts are wanted where their weights have a form that the kernel does not know. Ranks meet in
    collectives that were not tried in graphs yet; a stage computes what the one before it sends.
    """
    is_alone = model.group.size == model.stage.count == 1
    needs_host = any(isinstance(layer, MixtureOfExperts) and not layer.is_fused for layer in model.modules())
    return CudaCapture() if device.type == "cuda" and is_alone and not needs_host else None
