"""Checks of the arguments of rotary position embedding."""

import torch

from forebay_kernels.checks.tensors import (
    check_contiguous,
    check_device,
    check_dtype,
    check_floats,
    check_rows,
    check_same_kind,
)


def check_rotary(query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor) -> None:
    """Raise ValueError unless `rotary` can take these. Positions are not compared with the cache's length."""
    check_floats("query", query, "[num_tokens, num_heads, head_dim]", num_dims=3)
    num_tokens, _, head_dim = query.shape
    if head_dim == 0 or head_dim % 2:
        raise ValueError(f"query: head_dim must be even and at least 2, got shape {list(query.shape)}")
    if key.dim() != 3 or key.shape[0] != num_tokens or key.shape[2] != head_dim:
        raise ValueError(f"key: expected shape [{num_tokens}, num_kv_heads, {head_dim}], got {list(key.shape)}")
    check_same_kind("key", key, "query", query)
    check_rows("key", key)
    if positions.shape != query.shape[:1]:
        raise ValueError(f"positions: expected shape [{num_tokens}], got {list(positions.shape)}")
    check_dtype("positions", positions, torch.int64)
    check_device("positions", positions, "query", query)
    check_contiguous("positions", positions)
    if cos_sin_cache.dim() != 2 or cos_sin_cache.shape[1] != head_dim:
        raise ValueError(f"cos_sin_cache: expected shape [max_position, {head_dim}], got {list(cos_sin_cache.shape)}")
    check_dtype("cos_sin_cache", cos_sin_cache, torch.float32)
    check_device("cos_sin_cache", cos_sin_cache, "query", query)
    check_contiguous("cos_sin_cache", cos_sin_cache)
