"""Case: one call of a kernel with its arguments and its least work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from forebay_kernels.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Case:
    """One call to measure."""

    arguments: tuple[Any, ...]
    bytes_moved: int
    """Bytes that the call must at least read and write, each once."""
    flops: int = 0
    """Multiplications and additions of its matrix products; 0 for a call that has none."""
    tolerance: float = 1e-2
    """How far from the definition an element may be, beside two roundings to the dtype."""


CaseMaker = Callable[[ModelShape, int, torch.dtype, torch.device], Case]
"""(model, num_tokens, dtype, device) → the case."""
