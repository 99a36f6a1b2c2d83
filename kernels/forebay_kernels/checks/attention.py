"""Checks of the arguments of attention over paged keys and values."""

import torch

from forebay_kernels.checks.kv_cache import check_kv_cache
from forebay_kernels.checks.tensors import (
    check_device,
    check_dtype,
    check_floats,
    check_like,
    check_rows,
    check_same_kind,
)

MAX_HEAD_DIM = 256
"""Longest head that attention takes: the GPU kernels keep a tile of whole heads in registers."""


def check_prefill_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor,
    max_seqlen_q: int,
    scale: float,
    sliding_window: int,
    soft_cap: float,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `prefill_attention` can take these. What cu_seqlens_q and so on hold is not looked at."""
    num_kv_heads = _check_query(query, key_cache)
    expected = [query.shape[0], num_kv_heads, query.shape[2]]
    for name, tensor in (("key", key), ("value", value)):
        if list(tensor.shape) != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {list(tensor.shape)}")
        check_same_kind(name, tensor, "query", query)
        check_rows(name, tensor)
    check_kv_cache(key_cache, value_cache, key_scales, value_scales, query, num_kv_heads)
    num_seqs = context_lens.shape[0] if context_lens.dim() else 0
    check_like("context_lens", context_lens, (num_seqs,), torch.int32, query)
    check_like("cu_seqlens_q", cu_seqlens_q, (num_seqs + 1,), torch.int32, query)
    _check_block_table(block_table, num_seqs, query)
    if not 0 <= max_seqlen_q <= query.shape[0]:
        raise ValueError(f"max_seqlen_q: expected 0 to {query.shape[0]}, the number of tokens, got {max_seqlen_q}")
    _check_scores(scale, sliding_window, soft_cap)


def check_decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    scale: float,
    sliding_window: int,
    soft_cap: float,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
    attention_mass: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `decode_attention` can take these. What seq_lens holds is not looked at."""
    num_kv_heads = _check_query(query, key_cache)
    check_kv_cache(key_cache, value_cache, key_scales, value_scales, query, num_kv_heads)
    num_seqs = query.shape[0]
    check_like("seq_lens", seq_lens, (num_seqs,), torch.int32, query)
    _check_block_table(block_table, num_seqs, query)
    capacity = block_table.shape[1] * key_cache.shape[1]
    if not 0 <= max_seq_len <= capacity:
        raise ValueError(f"max_seq_len: expected 0 to {capacity}, what a row of block_table holds, got {max_seq_len}")
    _check_scores(scale, sliding_window, soft_cap)
    if attention_mass is not None:
        block_size = key_cache.shape[1]
        check_like("attention_mass", attention_mass, tuple(block_table.shape), torch.float32, query)
        if sliding_window or block_size & (block_size - 1):
            raise ValueError(
                "attention_mass: needs blocks of a power of two and no sliding window, got block_size "
                f"{block_size} and sliding_window {sliding_window}"
            )


def _check_query(query: torch.Tensor, key_cache: torch.Tensor) -> int:
    """Returns num_kv_heads."""
    check_floats("query", query, "[num_tokens, num_heads, head_dim]", num_dims=3)
    _, num_heads, head_dim = query.shape
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"query: head_dim must be 1 to {MAX_HEAD_DIM}, got shape {list(query.shape)}")
    num_kv_heads = key_cache.shape[2] if key_cache.dim() == 4 else 0
    if num_kv_heads == 0:
        raise ValueError(
            f"key_cache: expected shape [num_blocks, block_size, num_kv_heads, {head_dim}], got {list(key_cache.shape)}"
        )
    if num_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"query: num_heads must be a multiple of {num_kv_heads} key heads, got {list(query.shape)}")
    return num_kv_heads


def _check_block_table(block_table: torch.Tensor, num_seqs: int, query: torch.Tensor) -> None:
    if block_table.dim() != 2 or block_table.shape[0] != num_seqs:
        raise ValueError(f"block_table: expected shape [{num_seqs}, max_blocks], got {list(block_table.shape)}")
    check_dtype("block_table", block_table, torch.int32)
    check_device("block_table", block_table, "query", query)
    check_rows("block_table", block_table)


def _check_scores(scale: float, sliding_window: int, soft_cap: float) -> None:
    if not scale > 0:
        raise ValueError(f"scale: must be above 0, got {scale}")
    if sliding_window < 0:
        raise ValueError(f"sliding_window: must be at least 1, or 0 for none, got {sliding_window}")
    if soft_cap < 0:
        raise ValueError(f"soft_cap: must be above 0, or 0 for none, got {soft_cap}")
