"""The paged KV cache's reads and writes, as callers see them.

One layer's cache is two contiguous tensors, [num_blocks, block_size, num_kv_heads, head_dim]. It is of a float dtype,
or quantized to int8 or float8_e4m3fn with one float32 scale for each token and head in two more tensors,
[num_blocks, block_size, num_kv_heads], contiguous: no calibration, and no token's range touches another's.
"""

import torch

from forebay_kernels.checks import kv_cache as checks
from forebay_kernels.dispatch import implementation


def write_kv_cache(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn query and key as `rotary` does and write the turned key and the value into the cache, in one pass.

    Args:
        query: as for `rotary`.
        key: as for `rotary`.
        value: [num_tokens, num_kv_heads, head_dim], dtype and device of query, strides as query.
        positions: as for `rotary`.
        cos_sin_cache: as for `rotary`.
        key_cache: one layer's keys, as this module says; written in place.
        value_cache: one layer's values, written in place.
        slot_mapping: [num_tokens], int64, contiguous: block * block_size + offset where each token goes, no slot
            twice; below 0: this token is not written (padding of a CUDA graph). A slot beyond the cache is an
            IndexError on a CPU and writes to foreign memory on a GPU.
        key_scales: for a quantized cache, written in place; else None.
        value_scales: for a quantized cache, written in place; else None.

    Returns:
        (query, key) turned, new tensors, dtype of query, contiguous: the key as computed, before any quantization.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (
        query, key, value, positions, cos_sin_cache, key_cache, value_cache, slot_mapping, key_scales, value_scales
    )  # fmt: skip
    checks.check_write_kv_cache(*arguments)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("write_kv_cache", query.device.type)(*arguments)
    return outputs


def gather_kv_blocks(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    source_blocks: torch.Tensor,
    target_blocks: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """Copy blocks of one layer's cache over others: copy-on-write, and what is left after an eviction moved together.

    Args:
        key_cache: one layer's keys, as this module says; written in place.
        value_cache: one layer's values, written in place.
        source_blocks: [num_copies], int32, contiguous: blocks to read.
        target_blocks: [num_copies], int32, contiguous: block i becomes a copy of source block i. No block twice, and
            none that is also a source: copies happen in any order.
        key_scales: of a quantized cache, written in place; else None.
        value_scales: of a quantized cache, written in place; else None.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (key_cache, value_cache, source_blocks, target_blocks, key_scales, value_scales)
    checks.check_gather_kv_blocks(*arguments)
    implementation("gather_kv_blocks", key_cache.device.type)(*arguments)
