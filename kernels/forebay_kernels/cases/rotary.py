"""Bandwidth of rotary: reads query, key, positions and one row of the cache a token, writes query and key."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

_MAX_POSITION = 8192


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's heads of num_tokens tokens at random positions."""
    query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, device=device, dtype=dtype)
    key = torch.randn(num_tokens, shape.num_kv_heads, shape.head_dim, device=device, dtype=dtype)
    positions = torch.randint(_MAX_POSITION, (num_tokens,), device=device)
    cos_sin_cache = torch.randn(_MAX_POSITION, shape.head_dim, device=device)
    cache_bytes = num_tokens * shape.head_dim * cos_sin_cache.element_size()
    bytes_moved = 2 * (query.nbytes + key.nbytes) + positions.nbytes + cache_bytes
    return Case((query, key, positions, cos_sin_cache), bytes_moved=bytes_moved)
