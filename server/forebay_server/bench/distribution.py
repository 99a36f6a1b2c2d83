"""Percentiles and means of measured times. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a set of measurements looks like; all in the unit of the measurements."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, between neighbours in a straight line (numpy's default).

    Args:
        ordered: ascending, not empty.
        share: 0 to 1.
    """
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values: Sequence[float]) -> Distribution | None:
    """None when there is nothing to describe."""
    if not values:
        return None
    ordered = sorted(values)
    return Distribution(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )
