"""Inputs: the numbers a person gives the calculator, checked for sense when they are made."""

import math
from dataclasses import dataclass
from typing import Final

HOURS_PER_MONTH: Final = 730.0
"""8,760 hours a year in twelve months."""
SECONDS_PER_DAY: Final = 86_400.0
DAYS_PER_MONTH: Final = HOURS_PER_MONTH / 24

MAX_REQUESTS_PER_DAY: Final = 1e15
MAX_TOKENS: Final = 100_000_000
MAX_PRICE: Final = 1e6
MAX_GPUS: Final = 100_000_000


class InputError(ValueError):
    """A value is out of range.

    Args:
        key: the input, as the command line writes it.
        problem: what is wrong and what would be right.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One situation. The defaults are an example, not a recommendation."""

    requests_per_day: float = 1_000_000
    """0 is allowed: then one replica stays ready and nothing is paid for tokens."""
    prompt_tokens: int = 1024
    output_tokens: int = 256
    utilization: float = 20
    """Percent of the time in which a GPU has work now; 15-25 is usual where requests are served one at a time."""
    price: float = 3.0
    """US dollars for one GPU and hour."""
    gpus: int | None = None
    """GPUs that are paid for now; None: as many as one request at a time needs at this utilization."""
    target_utilization: float = 60
    """Percent reached with continuous batching; the rest is room for peaks. Never less than `utilization`."""
    prefix_hit: float = 30
    """Percent of the prompt's tokens that are found in the prefix cache; 0-90, the traffic decides."""
    acceptance: float = 60
    """Percent of drafted tokens that the model accepts; 50-80, the text decides."""

    def __post_init__(self) -> None:
        _check("--requests-per-day", self.requests_per_day, 0, MAX_REQUESTS_PER_DAY)
        _check("--prompt-tokens", self.prompt_tokens, 1, MAX_TOKENS)
        _check("--output-tokens", self.output_tokens, 1, MAX_TOKENS)
        _check("--utilization", self.utilization, 1, 100)
        _check("--gpu-price", self.price, 0, MAX_PRICE)
        if self.gpus is not None:
            _check("--gpus", self.gpus, 1, MAX_GPUS)
        _check("--target-utilization", self.target_utilization, 1, 100)
        _check("--prefix-hit", self.prefix_hit, 0, 99)
        _check("--acceptance", self.acceptance, 0, 99)

    @property
    def sequence_tokens(self) -> int:
        """Tokens of one request, prompt and answer."""
        return self.prompt_tokens + self.output_tokens


def _check(key: str, value: float, low: float, high: float) -> None:
    """Within the bounds, and a number at all."""
    if not math.isfinite(value) or not low <= value <= high:
        raise InputError(key, f"must be from {low:,} to {high:,.0f}, not {value:,}")
