"""Bandwidth of write_kv_cache: reads query, key, value and their angles, writes query, key twice and value."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

_MAX_POSITION = 8192
_BLOCK_SIZE = 16


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's heads of num_tokens tokens, to random slots of a cache of the same dtype."""
    query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, device=device, dtype=dtype)
    key = torch.randn(num_tokens, shape.num_kv_heads, shape.head_dim, device=device, dtype=dtype)
    value = torch.randn_like(key)
    positions = torch.randint(_MAX_POSITION, (num_tokens,), device=device)
    cos_sin_cache = torch.randn(_MAX_POSITION, shape.head_dim, device=device)
    num_blocks = -(-num_tokens // _BLOCK_SIZE)
    cache = torch.zeros(2, num_blocks, _BLOCK_SIZE, *key.shape[1:], device=device, dtype=dtype)
    slot_mapping = torch.randperm(num_blocks * _BLOCK_SIZE, device=device)[:num_tokens]
    angle_bytes = num_tokens * shape.head_dim * cos_sin_cache.element_size()
    bytes_moved = 2 * query.nbytes + 5 * key.nbytes + positions.nbytes + slot_mapping.nbytes + angle_bytes
    arguments = (query, key, value, positions, cos_sin_cache, cache[0], cache[1], slot_mapping)
    return Case(arguments, bytes_moved=bytes_moved)
