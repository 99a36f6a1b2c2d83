"""Pipeline stages: which layers each holds, and how a step is cut so that they work at once. Pure; no torch here.

Huang et al. 2018, "GPipe", arXiv:1811.06965: a batch goes through the stages in parts, so that the second stage has the
first part while the first stage has the second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from forebay_server.errors import ExitCode, StartupError


@dataclass(frozen=True, slots=True)
class Stage:
    """Some layers in a row. The first stage has the embedding, the last one the final norm and the output layer."""

    index: int = 0
    count: int = 1
    """Stages in all."""

    @property
    def is_first(self) -> bool:
        """Whether token ids come in here."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether logits come out here."""
        return self.index == self.count - 1

    def layers(self, num_layers: int) -> range:
        """The layers that it holds: as many as the others, or one more on the first stages."""
        size, more = divmod(num_layers, self.count)
        start = self.index * size + min(self.index, more)
        return range(start, start + size + (self.index < more))


WHOLE = Stage()
"""Of a model whose layers are all in one place."""


def place_of(rank: int, tensor_size: int, num_stages: int) -> tuple[Stage, int]:
    """A rank's stage, and its rank among those that share the layers of that stage; the first stage has rank 0."""
    return Stage(rank // tensor_size, num_stages), rank % tensor_size


def sampling_rank(tensor_size: int, num_stages: int) -> int:
    """The rank that has all logits in the end: the first of the last stage."""
    return (num_stages - 1) * tensor_size


def check_stages(num_layers: int, num_stages: int) -> None:
    """Refuse more stages than layers.

    Raises:
        StartupError: 2, with both numbers.
    """
    if num_stages > num_layers:
        raise StartupError(
            ExitCode.BAD_CONFIGURATION,
            "BadConfiguration",
            f"--pipeline-parallel-size {num_stages}: {num_layers} layers cannot be so many stages",
            suggestion=f"use --pipeline-parallel-size {num_layers} at most",
        )


def micro_batches(num_tokens: Sequence[int], max_parts: int, min_tokens: int) -> list[slice]:
    """Cut a batch of requests into parts of about as many tokens each, in their order.

    A part takes a stage at least the time in which it reads its weights. So a batch is cut only into parts that compute
    for longer than that; cutting a smaller one would make it wait.

    Args:
        num_tokens: of each request.
        max_parts: more would not keep more stages busy.
        min_tokens: of a part, about.

    Returns:
        At least one part, none of them empty.
    """
    ends = list(accumulate(num_tokens))
    total = ends[-1] if ends else 0
    num_parts = max(1, min(max_parts, len(ends), total // min_tokens))
    bounds = [0]
    for part in range(1, num_parts):
        choices = range(bounds[-1] + 1, len(ends) - (num_parts - part) + 1)  # every later part needs a request
        bounds.append(min(choices, key=lambda stop: abs(ends[stop - 1] - total * part / num_parts)))
    return [slice(start, stop) for start, stop in pairwise([*bounds, len(ends)])]
