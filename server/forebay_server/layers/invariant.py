"""Arithmetic whose result for one token does not depend on what else is in the step: float32 on CPUs.

A matrix product picks its blocking, and with it the order of its sums, by the number of rows: on one machine 1, 2 to 15
and 16 or more rows gave three different last bits for the same row. So a token's logits would change with its batch
mates, with the chunk that it is computed in, and with what the prefix cache has of its prompt; near a tie so would the
answer. Here a linear layer always multiplies `ROWS` rows, so a row's result is its own. Attention, whose sizes are what
they are, is computed in float64 and rounded: the order of its sums then changes a float32 about once in a hundred
million numbers, by its last bit.

What it costs stands in docs/decisions/0009. Other dtypes do not pay it and get no such promise from torch operators;
the C++ step of the CPU engine has an order of its own that is always the same.
"""

import torch
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import pad

ROWS = 16
"""More would make decoding slower, fewer the reading of prompts: each slab reads all weights."""


def is_invariant(x: torch.Tensor) -> bool:
    """Whether what is computed from this tensor is to be independent of its number of rows."""
    return x.dtype == torch.float32 and x.device.type == "cpu"


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """X · weightᵀ + bias.

    Args:
        x: [num_rows, in_features].
        weight: [out_features, in_features].
        bias: [out_features] or None.

    Returns:
        [num_rows, out_features]; in float32 on a CPU each row as if it were alone.
    """
    num_rows = x.shape[0]
    if num_rows == 0 or not is_invariant(x):
        return torch_linear(x, weight, bias)
    slabs = torch.split(pad(x, (0, 0, 0, -num_rows % ROWS)), ROWS)
    return torch.cat([torch_linear(slab, weight, bias) for slab in slabs])[:num_rows]
