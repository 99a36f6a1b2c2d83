"""The search: each launch that a kernel makes is timed with other warps and stages, and the fastest is kept."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from forebay_kernels.gpu.launch import Launch
from forebay_kernels.tuning.tables import LaunchOptions

NUM_WARPS = (2, 4, 8, 16)
NUM_STAGES = (1, 2, 3, 4, 5)
MIN_GAIN = 1.03
"""A candidate must be so many times faster than the default: less is noise."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the search found for one shape class."""

    shape_class: str
    default_us: float
    best: LaunchOptions | None
    """None: nothing beats the default."""
    best_us: float


def candidates(launch: Launch) -> Iterator[LaunchOptions]:
    """Options to try; a kernel whose default leaves the stages to the compiler has no loop to pipeline."""
    stages: Iterable[int | None] = (None,) if launch.num_stages is None else NUM_STAGES
    for num_warps, num_stages in product(NUM_WARPS, stages):
        if (num_warps, num_stages) != (launch.num_warps, launch.num_stages):
            yield LaunchOptions(num_warps, num_stages)


def search(launch: Launch, measure: Callable[[Launch], float | None]) -> Found:
    """Time the candidates of one launch.

    Args:
        launch: with tensors that it may write to again and again.
        measure: microseconds of a launch; None where it cannot be compiled or started.

    Raises:
        RuntimeError: the default itself cannot be measured.
    """
    default_us = measure(launch)
    if default_us is None:
        raise RuntimeError(f"{launch.shape_class} does not run with its default options")
    best, best_us = None, default_us
    for options in candidates(launch):
        changed = replace(launch, num_warps=options.num_warps, num_stages=options.num_stages)
        microseconds = measure(changed)
        if microseconds is not None and microseconds < best_us and microseconds * MIN_GAIN < default_us:
            best, best_us = options, microseconds
    return Found(launch.shape_class, default_us, best, best_us)
