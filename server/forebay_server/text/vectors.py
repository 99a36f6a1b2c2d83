"""Embedding vectors: made one unit long, and written as OpenAI's API writes them."""

import base64
import math
import sys
from array import array
from collections.abc import Sequence


def normalized(vector: Sequence[float]) -> "array[float]":
    """The vector with Euclidean length 1, in float32; a vector of zeros stays as it is."""
    length = math.sqrt(math.fsum(value * value for value in vector))
    return array("f", [value / length for value in vector] if length else vector)


def base64_of(vector: "array[float]") -> str:
    """Little-endian float32 numbers, in base64."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode("ascii")
