"""Speed of prefill_attention on one prompt without a prefix: reads query, key and value, writes as much as query."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

_BLOCK_SIZE = 16


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's attention of one prompt of num_tokens tokens."""
    query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, device=device, dtype=dtype)
    key = torch.randn(num_tokens, shape.num_kv_heads, shape.head_dim, device=device, dtype=dtype)
    value = torch.randn_like(key)
    cache = torch.zeros(1, _BLOCK_SIZE, *key.shape[1:], device=device, dtype=dtype)
    block_table = torch.zeros(1, 1, device=device, dtype=torch.int32)
    bounds = torch.tensor([0, num_tokens], device=device, dtype=torch.int32)
    context_lens = torch.zeros(1, device=device, dtype=torch.int32)
    arguments = (
        query, key, value, cache, cache, block_table, bounds, context_lens, num_tokens, shape.head_dim**-0.5
    )  # fmt: skip
    # Two products of two operations each for every pair of a query and a key that it sees.
    num_pairs = num_tokens * (num_tokens + 1) // 2
    return Case(
        arguments,
        bytes_moved=2 * query.nbytes + 2 * key.nbytes,
        flops=4 * shape.num_heads * shape.head_dim * num_pairs,
    )
