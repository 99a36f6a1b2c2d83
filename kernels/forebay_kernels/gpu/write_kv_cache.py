"""Rotary position embedding fused with the write of keys and values into the paged cache, in Triton.

Bound by memory: query, key and value are read once and written once. Grid axis 1 runs over groups of heads, first the
query's, then the key's, then the value's.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import PLAIN, as_bytes, format_of, inverse_scale, largest_of, quantize
from forebay_kernels.gpu.launch import Launch, block_of, warps_of

# As for rotary: 16 heads of 128, 32 heads of 64. By arithmetic: not yet measured on a GPU.
_ELEMENTS_PER_PROGRAM = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _store_to_cache(  # type: ignore[no-untyped-def]
    cache_ptr,
    scales_ptr,
    first,
    second,
    slot,
    heads,
    offs,
    mask,
    num_kv_heads,
    head_dim,
    largest,
    FORMAT: tl.constexpr,
):
    """Write the halves of some heads of one token to its slot, [BLOCK_HEADS, BLOCK_HALF] each, float32 or rounded."""
    target = cache_ptr + (slot * num_kv_heads + heads) * head_dim + offs
    if FORMAT == PLAIN:
        stored_first = first.to(cache_ptr.dtype.element_ty)
        stored_second = second.to(cache_ptr.dtype.element_ty)
    else:
        first = first.to(tl.float32)
        second = second.to(tl.float32)
        magnitude = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1, keep_dims=True)  # [BLOCK_HEADS, 1]
        inverse = inverse_scale(magnitude, largest)
        stored_first = quantize(first * inverse, FORMAT)
        stored_second = quantize(second * inverse, FORMAT)
        tl.store(scales_ptr + slot * num_kv_heads + heads, magnitude / largest, mask=heads < num_kv_heads)
    tl.store(target, stored_first, mask=mask)
    tl.store(target + head_dim // 2, stored_second, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _write_kv_cache_kernel(  # type: ignore[no-untyped-def]
    turned_query_ptr,  # [num_tokens, num_heads, head_dim], contiguous
    turned_key_ptr,  # [num_tokens, num_kv_heads, head_dim], contiguous
    query_ptr,  # [num_tokens, num_heads, head_dim]
    key_ptr,  # [num_tokens, num_kv_heads, head_dim]
    value_ptr,  # [num_tokens, num_kv_heads, head_dim]
    positions_ptr,  # [num_tokens], int64
    cos_sin_cache_ptr,  # [max_position, head_dim], float32
    key_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim], contiguous
    value_cache_ptr,  # as key_cache
    key_scales_ptr,  # [num_blocks, block_size, num_kv_heads], float32; unused where FORMAT is PLAIN
    value_scales_ptr,  # as key_scales
    slot_mapping_ptr,  # [num_tokens], int64
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    num_heads,
    num_kv_heads,
    head_dim,
    largest,
    FORMAT: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Handle BLOCK_HEADS heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    num_query_groups = tl.cdiv(num_heads, BLOCK_HEADS)
    num_kv_groups = tl.cdiv(num_kv_heads, BLOCK_HEADS)
    half = head_dim // 2
    offs = tl.arange(0, BLOCK_HALF)[None, :]  # [1, BLOCK_HALF]

    # Which of the three tensors, and which of its heads.
    is_query = group < num_query_groups
    is_value = group >= num_query_groups + num_kv_groups
    first_group = tl.where(is_query, 0, tl.where(is_value, num_query_groups + num_kv_groups, num_query_groups))
    heads = (group - first_group) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]  # [BLOCK_HEADS, 1]
    mask = (heads < tl.where(is_query, num_heads, num_kv_heads)) & (offs < half)
    slot = tl.load(slot_mapping_ptr + token)

    if is_value:
        source = value_ptr + token * stride_value_token + heads * stride_value_head + offs
        first = tl.load(source, mask=mask, other=0.0)
        second = tl.load(source + half, mask=mask, other=0.0)
        if slot >= 0:
            _store_to_cache(
                value_cache_ptr, value_scales_ptr, first, second, slot, heads, offs, mask, num_kv_heads, head_dim,
                largest, FORMAT,
            )  # fmt: skip
    else:
        angle_ptr = cos_sin_cache_ptr + tl.load(positions_ptr + token) * head_dim + offs
        cos = tl.load(angle_ptr, mask=offs < half, other=0.0)
        sin = tl.load(angle_ptr + half, mask=offs < half, other=0.0)
        if is_query:
            source = query_ptr + token * stride_query_token + heads * stride_query_head + offs
            a = tl.load(source, mask=mask, other=0.0).to(tl.float32)
            b = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
            target = turned_query_ptr + (token * num_heads + heads) * head_dim + offs
            tl.store(target, (a * cos - b * sin).to(turned_query_ptr.dtype.element_ty), mask=mask)
            tl.store(target + half, (b * cos + a * sin).to(turned_query_ptr.dtype.element_ty), mask=mask)
        else:
            source = key_ptr + token * stride_key_token + heads * stride_key_head + offs
            a = tl.load(source, mask=mask, other=0.0).to(tl.float32)
            b = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
            target = turned_key_ptr + (token * num_kv_heads + heads) * head_dim + offs
            # Rounded before it is quantized, as the definition does: prefill reads this very key.
            first = (a * cos - b * sin).to(turned_key_ptr.dtype.element_ty)
            second = (b * cos + a * sin).to(turned_key_ptr.dtype.element_ty)
            tl.store(target, first, mask=mask)
            tl.store(target + half, second, mask=mask)
            if slot >= 0:
                _store_to_cache(
                    key_cache_ptr, key_scales_ptr, first, second, slot, heads, offs, mask, num_kv_heads, head_dim,
                    largest, FORMAT,
                )  # fmt: skip


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
    """Launch the kernel; arguments, effects and results as `forebay_kernels.write_kv_cache`."""
    turned_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    turned_key = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    write_kv_cache_launch(
        turned_query, turned_key, query, key, value, positions, cos_sin_cache, key_cache, value_cache, slot_mapping,
        key_scales, value_scales,
    ).run()  # fmt: skip
    return turned_query, turned_key


def write_kv_cache_launch(
    turned_query: torch.Tensor,
    turned_key: torch.Tensor,
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
) -> Launch:
    """Return the launch of `write_kv_cache` that writes to turned_query and turned_key, both contiguous. Pure."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    block_half = block_of(head_dim // 2)
    block_heads = min(max(_ELEMENTS_PER_PROGRAM // block_half, 1), block_of(max(num_heads, num_kv_heads, 1)))
    num_groups = triton.cdiv(num_heads, block_heads) + 2 * triton.cdiv(num_kv_heads, block_heads)
    return Launch(
        kernel=_write_kv_cache_kernel,
        grid=(num_tokens, num_groups),
        arguments={
            "turned_query_ptr": turned_query,
            "turned_key_ptr": turned_key,
            "query_ptr": query,
            "key_ptr": key,
            "value_ptr": value,
            "positions_ptr": positions,
            "cos_sin_cache_ptr": cos_sin_cache,
            "key_cache_ptr": as_bytes(key_cache),
            "value_cache_ptr": as_bytes(value_cache),
            # A tensor stands where none is needed: Triton's arguments have one type each.
            "key_scales_ptr": cos_sin_cache if key_scales is None else key_scales,
            "value_scales_ptr": cos_sin_cache if value_scales is None else value_scales,
            "slot_mapping_ptr": slot_mapping,
            "stride_query_token": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_key_token": key.stride(0),
            "stride_key_head": key.stride(1),
            "stride_value_token": value.stride(0),
            "stride_value_head": value.stride(1),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "largest": largest_of(key_cache.dtype),
            "FORMAT": format_of(key_cache.dtype),
            "BLOCK_HEADS": block_heads,
            "BLOCK_HALF": block_half,
        },
        num_warps=warps_of(block_heads * block_half, elements_per_thread=8),
    )
