"""When the requests of an open loop arrive. Pure."""

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, generator: random.Random) -> Iterator[float]:
    """Seconds since the start, without end: independent arrivals, `rate` a second on average."""
    now = 0.0
    while True:
        now += generator.expovariate(rate)
        yield now


def burst_arrivals(size: int, interval: float) -> Iterator[float]:
    """Seconds since the start, without end: `size` at once, every `interval` seconds, the first burst at 0."""
    burst = 0
    while True:
        for _ in range(size):
            yield burst * interval
        burst += 1
