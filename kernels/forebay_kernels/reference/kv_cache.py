"""The paged KV cache's reads and writes, defined in plain PyTorch."""

import torch

from forebay_kernels.reference.positions import rotary
from forebay_kernels.reference.quantization import quantize_rows


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
    """Turn query and key, write the turned key and the value to their slots, return (query, key) turned."""
    turned_query, turned_key = rotary(query, key, positions, cos_sin_cache)
    is_written = slot_mapping >= 0
    slots = slot_mapping[is_written]
    for new, cache, scales in ((turned_key, key_cache, key_scales), (value, value_cache, value_scales)):
        rows = new[is_written]
        if scales is None:
            cache.flatten(0, 1).index_copy_(0, slots, rows.to(cache.dtype))
        else:
            quantized, row_scales = quantize_rows(rows, cache.dtype)
            # 8-bit floats cannot be scattered everywhere: their bytes can.
            cache.view(torch.uint8).flatten(0, 1).index_copy_(0, slots, quantized.view(torch.uint8))
            scales.flatten(0, 1).index_copy_(0, slots, row_scales)
    return turned_query, turned_key


def gather_kv_blocks(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    source_blocks: torch.Tensor,
    target_blocks: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """Copy block source_blocks[i] over block target_blocks[i], in every tensor of the cache."""
    for tensor in (key_cache, value_cache, key_scales, value_scales):
        if tensor is not None:
            # 8-bit floats cannot be scattered everywhere: their bytes can.
            blocks = tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
            blocks.index_copy_(0, target_blocks.long(), blocks[source_blocks.long()])
