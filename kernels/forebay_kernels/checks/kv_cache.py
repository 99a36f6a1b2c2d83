"""Checks of the arguments of the paged KV cache's reads and writes."""

import torch

from forebay_kernels.checks.positions import check_rotary
from forebay_kernels.checks.tensors import (
    FLOAT_DTYPES,
    check_contiguous,
    check_device,
    check_like,
    check_rows,
    check_same_kind,
)
from forebay_kernels.reference.quantization import LARGEST


def check_kv_cache(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
    query: torch.Tensor,
    num_kv_heads: int,
) -> None:
    """Raise ValueError unless these are one layer's paged cache that fits query, with scales if it is quantized."""
    head_dim = query.shape[2]
    shape = list(key_cache.shape)
    if len(shape) != 4 or shape[2:] != [num_kv_heads, head_dim] or 0 in shape[1:]:
        raise ValueError(f"key_cache: expected shape [num_blocks, block_size, {num_kv_heads}, {head_dim}], got {shape}")
    check_device("key_cache", key_cache, "query", query)
    check_contiguous("key_cache", key_cache)
    check_like("value_cache", value_cache, tuple(shape), key_cache.dtype, query)
    if key_cache.dtype in LARGEST:
        for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
            if scales is None:
                raise ValueError(f"{name}: a cache of {key_cache.dtype} needs one float32 for each slot and head")
            check_like(name, scales, tuple(shape[:3]), torch.float32, query)
    elif key_cache.dtype not in FLOAT_DTYPES:
        raise ValueError(
            f"key_cache: expected float32, float16, bfloat16, int8 or float8_e4m3fn, got {key_cache.dtype}"
        )
    elif key_scales is not None or value_scales is not None:
        raise ValueError(f"key_scales, value_scales: a cache of {key_cache.dtype} has none")


def check_write_kv_cache(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `write_kv_cache` can take these. Slots are not compared with the cache's size."""
    check_rotary(query, key, positions, cos_sin_cache)
    if value.shape != key.shape:
        raise ValueError(f"value: expected the shape of key, {list(key.shape)}, got {list(value.shape)}")
    check_same_kind("value", value, "query", query)
    check_rows("value", value)
    check_kv_cache(key_cache, value_cache, key_scales, value_scales, query, key.shape[1])
    check_like("slot_mapping", slot_mapping, (query.shape[0],), torch.int64, query)


def check_gather_kv_blocks(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    source_blocks: torch.Tensor,
    target_blocks: torch.Tensor,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `gather_kv_blocks` can take these. Which blocks they name is not looked at."""
    if key_cache.dim() != 4:
        raise ValueError(
            f"key_cache: expected shape [num_blocks, block_size, num_kv_heads, head_dim], got {list(key_cache.shape)}"
        )
    like = key_cache[0] if len(key_cache) else key_cache.flatten(0, 1)
    check_kv_cache(key_cache, value_cache, key_scales, value_scales, like, key_cache.shape[2])
    num_copies = source_blocks.shape[0] if source_blocks.dim() else 0
    check_like("source_blocks", source_blocks, (num_copies,), torch.int32, key_cache)
    check_like("target_blocks", target_blocks, (num_copies,), torch.int32, key_cache)
