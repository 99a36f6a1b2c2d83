"""Bandwidth of decode_attention: num_tokens sequences of 1,024 tokens each; reads their keys and values once."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

_BLOCK_SIZE = 16
_SEQ_LEN = 1024


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's attention of num_tokens new tokens, each of another sequence, over blocks in random order."""
    query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, device=device, dtype=dtype)
    num_blocks = _SEQ_LEN // _BLOCK_SIZE
    shape_of_cache = (num_tokens * num_blocks, _BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    key_cache = torch.randn(shape_of_cache, device=device, dtype=dtype)
    value_cache = torch.randn_like(key_cache)
    block_table = torch.randperm(num_tokens * num_blocks, device=device).view(num_tokens, num_blocks).int()
    seq_lens = torch.full((num_tokens,), _SEQ_LEN, device=device, dtype=torch.int32)
    return Case(
        (query, key_cache, value_cache, block_table, seq_lens, _SEQ_LEN, shape.head_dim**-0.5),
        bytes_moved=2 * query.nbytes + 2 * key_cache.nbytes + block_table.nbytes + seq_lens.nbytes,
        flops=4 * num_tokens * _SEQ_LEN * shape.num_heads * shape.head_dim,
    )
