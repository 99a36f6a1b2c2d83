"""A graph as a CPU can have it: a replay does the work again, on the memory of the capture."""

from collections.abc import Callable

import torch

from forebay_server.engine.gpu.graphs import Replay


class ReplayByCalling:
    """Captures by remembering the work; counts what happens."""

    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
        """See `Capture`; the output is nonsense until the first replay, as a graph's is."""
        self.num_captures += 1
        output = torch.full_like(work(), float("nan"))

        def replay() -> None:
            self.num_replays += 1
            output.copy_(work())

        return replay, output
