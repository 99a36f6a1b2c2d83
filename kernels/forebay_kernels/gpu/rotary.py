"""Rotary position embedding of query and key in one Triton launch (half-split, "neox" layout)."""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.launch import Launch, block_of, warps_of

# Elements that one program turns, halves counted once: 16 heads of 128, 32 heads of 64. Two 16-byte loads a thread at
# 4 warps. A token of a 70B model (64 + 8 heads of 128) is 5 programs. By arithmetic: not yet measured on a GPU.
_ELEMENTS_PER_PROGRAM = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _turn_heads(  # type: ignore[no-untyped-def]
    turned_ptr,
    heads_ptr,
    cos,
    sin,
    token,
    first_head,
    num_heads,
    stride_token,
    stride_head,
    head_dim,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Turn heads first_head to first_head + BLOCK_HEADS of one token: (a, b) → (a·cos - b·sin, b·cos + a·sin)."""
    half = head_dim // 2
    heads = first_head + tl.arange(0, BLOCK_HEADS)[:, None]  # [BLOCK_HEADS, 1]
    offs = tl.arange(0, BLOCK_HALF)[None, :]  # [1, BLOCK_HALF]
    mask = (heads < num_heads) & (offs < half)
    source = heads_ptr + token * stride_token + heads * stride_head + offs
    a = tl.load(source, mask=mask, other=0.0)
    b = tl.load(source + half, mask=mask, other=0.0)
    a_float32 = a.to(tl.float32)
    b_float32 = b.to(tl.float32)
    target = turned_ptr + (token * num_heads + heads) * head_dim + offs
    tl.store(target, (a_float32 * cos - b_float32 * sin).to(a.dtype), mask=mask)
    tl.store(target + half, (b_float32 * cos + a_float32 * sin).to(a.dtype), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _rotary_kernel(  # type: ignore[no-untyped-def]
    turned_query_ptr,  # [num_tokens, num_heads, head_dim], contiguous
    turned_key_ptr,  # [num_tokens, num_kv_heads, head_dim], contiguous
    query_ptr,  # [num_tokens, num_heads, head_dim]
    key_ptr,  # [num_tokens, num_kv_heads, head_dim]
    positions_ptr,  # [num_tokens], int64
    cos_sin_cache_ptr,  # [max_position, head_dim], float32
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    num_heads,
    num_kv_heads,
    head_dim,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Turn BLOCK_HEADS heads of one token; along grid axis 1 first the groups of query heads, then those of key."""
    # 64 bits: num_tokens * num_heads * head_dim can pass 2**31.
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    num_query_groups = tl.cdiv(num_heads, BLOCK_HEADS)

    half = head_dim // 2
    offs = tl.arange(0, BLOCK_HALF)[None, :]  # [1, BLOCK_HALF]
    angle_ptr = cos_sin_cache_ptr + tl.load(positions_ptr + token) * head_dim + offs
    cos = tl.load(angle_ptr, mask=offs < half, other=0.0)
    sin = tl.load(angle_ptr + half, mask=offs < half, other=0.0)

    if group < num_query_groups:
        _turn_heads(
            turned_query_ptr,
            query_ptr,
            cos,
            sin,
            token,
            group * BLOCK_HEADS,
            num_heads,
            stride_query_token,
            stride_query_head,
            head_dim,
            BLOCK_HEADS,
            BLOCK_HALF,
        )
    else:
        _turn_heads(
            turned_key_ptr,
            key_ptr,
            cos,
            sin,
            token,
            (group - num_query_groups) * BLOCK_HEADS,
            num_kv_heads,
            stride_key_token,
            stride_key_head,
            head_dim,
            BLOCK_HEADS,
            BLOCK_HALF,
        )


def rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.rotary`."""
    turned_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    turned_key = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    rotary_launch(turned_query, turned_key, query, key, positions, cos_sin_cache).run()
    return turned_query, turned_key


def rotary_launch(
    turned_query: torch.Tensor,
    turned_key: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
) -> Launch:
    """Return the launch of `rotary` that writes to turned_query and turned_key, both contiguous. Pure."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    block_half = block_of(head_dim // 2)
    # No wider than the heads there are: a token of a small model would mask most of its block.
    block_heads = min(max(_ELEMENTS_PER_PROGRAM // block_half, 1), block_of(max(num_heads, num_kv_heads, 1)))
    num_groups = triton.cdiv(num_heads, block_heads) + triton.cdiv(num_kv_heads, block_heads)
    return Launch(
        kernel=_rotary_kernel,
        grid=(num_tokens, num_groups),
        arguments={
            "turned_query_ptr": turned_query,
            "turned_key_ptr": turned_key,
            "query_ptr": query,
            "key_ptr": key,
            "positions_ptr": positions,
            "cos_sin_cache_ptr": cos_sin_cache,
            "stride_query_token": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_key_token": key.stride(0),
            "stride_key_head": key.stride(1),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "BLOCK_HEADS": block_heads,
            "BLOCK_HALF": block_half,
        },
        num_warps=warps_of(block_heads * block_half, elements_per_thread=8),
    )
