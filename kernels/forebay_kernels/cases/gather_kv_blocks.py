"""Bandwidth of gather_kv_blocks: reads and writes num_tokens blocks of keys and as many of values."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

_BLOCK_SIZE = 16


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Copies of num_tokens blocks of one layer's cache."""
    sizes = (2 * num_tokens, _BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    key_cache = torch.randn(sizes, device=device, dtype=dtype)
    value_cache = torch.randn_like(key_cache)
    blocks = torch.randperm(2 * num_tokens, device=device).int()
    sources, targets = blocks[:num_tokens].clone(), blocks[num_tokens:].clone()
    # Half of the cache is read, the other half written.
    bytes_moved = key_cache.nbytes + value_cache.nbytes + blocks.nbytes
    return Case((key_cache, value_cache, sources, targets), bytes_moved=bytes_moved)
