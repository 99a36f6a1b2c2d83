"""Rotary position embedding, as callers see it."""

import torch

from forebay_kernels.checks import positions as checks
from forebay_kernels.dispatch import implementation


def rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn every head of query and key by the angles of its token's position (half-split, "neox" layout).

    Args:
        query: [num_tokens, num_heads, head_dim], float32, float16 or bfloat16, head_dim even; elements of a head
            adjacent, heads and tokens may lie apart (a slice of a fused projection is fine). Not written to.
        key: [num_tokens, num_kv_heads, head_dim], dtype and device of query, strides as query.
        positions: [num_tokens], int64, contiguous, each from 0 to max_position - 1. Values are not checked here: a
            larger one is an IndexError on a CPU and reads foreign memory on a GPU.
        cos_sin_cache: [max_position, head_dim], float32, contiguous: cosines in the first half of a row, sines in the
            second.

    Returns:
        (query, key) turned, new tensors, dtype of query, contiguous. The arithmetic is float32.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    checks.check_rotary(query, key, positions, cos_sin_cache)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("rotary", query.device.type)(
        query, key, positions, cos_sin_cache
    )
    return outputs
