"""How long prompts and answers are: fixed, uniform, or lognormal as chats are. Pure.

`sharegpt`: lognormal with the means of ShareGPT conversations in tokens, 161 and 338 (Kwon et al. 2023,
arXiv:2309.06180, figure 11); how far they spread is our estimate from the shape of the figure.
"""

import math
import random
import re
from dataclasses import dataclass
from typing import Protocol


class Lengths(Protocol):
    """Draws lengths in tokens."""

    def draw(self, generator: random.Random) -> int:
        """At least 1."""
        ...

    @property
    def longest(self) -> int:
        """The longest that can be drawn."""
        ...


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Every length from low to high, equally likely; low = high: fixed."""

    low: int
    high: int

    def draw(self, generator: random.Random) -> int:
        """See `Lengths`."""
        return generator.randint(self.low, self.high)

    @property
    def longest(self) -> int:
        """See `Lengths`."""
        return self.high


@dataclass(frozen=True, slots=True)
class LognormalLengths:
    """Many short, few long: the logarithm is normal."""

    mean: float
    """Of the lengths, before they are cut off at the top."""
    sigma: float
    """Of the logarithms."""
    longest: int

    def draw(self, generator: random.Random) -> int:
        """See `Lengths`."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        return min(max(1, round(generator.lognormvariate(mu, self.sigma))), self.longest)


SHAREGPT_PROMPT = LognormalLengths(161, 1.2, 1024)
SHAREGPT_OUTPUT = LognormalLengths(338, 0.9, 1024)
_UNIFORM = re.compile(r"(\d+)-(\d+)")
_LOGNORMAL = re.compile(r"lognormal:(\d+(?:\.\d+)?),(\d+(?:\.\d+)?),(\d+)")


def parse_lengths(text: str, sharegpt: LognormalLengths) -> Lengths:
    """Read `256`, `100-400`, `lognormal:MEAN,SIGMA,MAX` or `sharegpt`.

    Raises:
        ValueError: saying what would be right.
    """
    if text == "sharegpt":
        return sharegpt
    if text.isascii() and text.isdigit() and int(text) > 0:
        return UniformLengths(int(text), int(text))
    uniform, lognormal = _UNIFORM.fullmatch(text), _LOGNORMAL.fullmatch(text)
    if uniform and 0 < int(uniform[1]) <= int(uniform[2]):
        return UniformLengths(int(uniform[1]), int(uniform[2]))
    if lognormal and float(lognormal[1]) > 0 and int(lognormal[3]) > 0:
        return LognormalLengths(float(lognormal[1]), float(lognormal[2]), int(lognormal[3]))
    raise ValueError(f"{text!r}: 256, 100-400, lognormal:MEAN,SIGMA,MAX or sharegpt is wanted")
