"""Prefill attention in Triton: FlashAttention-2 over the chunk at hand, and over its prefix through pages.

Bound by matrix products: 4 · num_heads · head_dim operations for each query and each key that it sees. Memory is
proportional to the tokens. One program computes BLOCK_M tokens of one head; it reads the cached prefix first, then the
chunk's tiles before its own without a mask, then its own with the causal one. From Hopper on the hardware copies those
tiles without a mask by descriptors (TMA), where keys and values are aligned for it.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from forebay_kernels.gpu.attention_tile import LOG2_E, cached_tile, update
from forebay_kernels.gpu.eight_bits import PLAIN, as_bytes, format_of
from forebay_kernels.gpu.launch import Launch, block_of, dot_type
from forebay_kernels.targets import Target, target_of


@triton.jit
def _chunk_tile(  # type: ignore[no-untyped-def]
    key_ptr,
    value_ptr,
    start,
    stride_key_token,
    stride_value_token,
    key_offs,
    value_offs,
    key_mask,
    value_mask,
):
    """Read the chunk's keys, [BLOCK_D, BLOCK_N], and values, [BLOCK_N, BLOCK_D], from token start on."""
    start = tl.cast(start, tl.int64)
    key = tl.load(key_ptr + start * stride_key_token + key_offs, mask=key_mask, other=0.0)
    value = tl.load(value_ptr + start * stride_value_token + value_offs, mask=value_mask, other=0.0)
    return key, value


@triton.jit  # type: ignore[untyped-decorator]
def _prefill_attention_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, num_heads, head_dim], contiguous
    query_ptr,  # [num_tokens, num_heads, head_dim]
    key_ptr,  # [num_tokens, num_kv_heads, head_dim]
    value_ptr,  # [num_tokens, num_kv_heads, head_dim]
    key_descriptor,  # of key, in tiles of [BLOCK_N, 1, BLOCK_D]; unused unless USES_TMA
    value_descriptor,  # likewise, of value
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, head_dim], contiguous
    value_cache_ptr,  # as key_cache
    key_scales_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads], float32; unused where FORMAT is PLAIN
    value_scales_ptr,  # as key_scales
    block_table_ptr,  # [num_seqs, max_blocks], int32
    cu_seqlens_q_ptr,  # [num_seqs + 1], int32
    context_lens_ptr,  # [num_seqs], int32
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_block_table,
    num_heads,
    num_kv_heads,
    head_dim,
    scale,
    soft_cap,
    sliding_window,
    FORMAT: tl.constexpr,
    DOT: tl.constexpr,
    USES_TMA: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_PREFIX: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute BLOCK_M tokens of one head of one sequence. BLOCK_M is a multiple of BLOCK_N."""
    head = tl.program_id(0)
    seq = tl.program_id(2)
    kv_head = head // (num_heads // num_kv_heads)
    # The last tokens see the most keys: they start first.
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    first_token = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    num_new = (tl.load(cu_seqlens_q_ptr + seq + 1) - first_token).to(tl.int32)
    if first_row >= num_new:
        return
    context_len = tl.load(context_lens_ptr + seq)
    DTYPE: tl.constexpr = query_ptr.dtype.element_ty

    offs_m = first_row + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_tile = tl.arange(0, BLOCK_N)
    in_head = offs_d < head_dim
    row_mask = (offs_m < num_new)[:, None] & in_head[None, :]
    rows = (first_token + offs_m)[:, None]
    query = tl.load(
        query_ptr + rows * stride_query_token + head * stride_query_head + offs_d[None, :], mask=row_mask, other=0.0
    ).to(DOT)

    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    m_i = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    l_i = tl.zeros((BLOCK_M,), dtype=tl.float32)

    # The prefix, through pages.
    table_ptr = block_table_ptr + seq.to(tl.int64) * stride_block_table
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(context_len + first_row - sliding_window + 1, 0) // BLOCK_PREFIX * BLOCK_PREFIX
    for start in range(first_key, context_len, BLOCK_PREFIX):
        offs_n = start + tl.arange(0, BLOCK_PREFIX)
        in_context = offs_n < context_len
        key, value, key_scale, value_scale = cached_tile(
            key_cache_ptr, value_cache_ptr, key_scales_ptr, value_scales_ptr, table_ptr, offs_n, in_context, offs_d,
            in_head, kv_head, num_kv_heads, head_dim, FORMAT, BLOCK_SIZE,
        )  # fmt: skip
        is_visible = in_context[None, :]
        if HAS_WINDOW:
            is_visible = is_visible & (context_len + offs_m[:, None] - offs_n[None, :] < sliding_window)
        acc, m_i, l_i, _ = update(
            acc, m_i, l_i, query, key, value, key_scale, value_scale, is_visible, scale, soft_cap,
            FORMAT, DTYPE, DOT, HAS_SOFT_CAP, True,
        )  # fmt: skip

    # The chunk before this program's rows: all are this sequence's, and all visible unless the window ends there.
    key_base = key_ptr + first_token * stride_key_token + kv_head * stride_key_head
    value_base = value_ptr + first_token * stride_value_token + kv_head * stride_value_head
    # 32 bits within a tile, and 64 to its start: pointers of 64 bits for a whole tile would fill the registers.
    key_offs = offs_tile[None, :] * stride_key_token + offs_d[:, None]
    value_offs = offs_tile[:, None] * stride_value_token + offs_d[None, :]
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_row - sliding_window + 1, 0) // BLOCK_N * BLOCK_N
    for start in range(first_key, first_row, BLOCK_N):
        offs_n = start + offs_tile
        if USES_TMA:
            tile = [first_token.to(tl.int32) + start, kv_head, 0]
            key = key_descriptor.load(tile).reshape(BLOCK_N, BLOCK_D).T
            value = value_descriptor.load(tile).reshape(BLOCK_N, BLOCK_D)
        else:
            key, value = _chunk_tile(
                key_base, value_base, start, stride_key_token, stride_value_token, key_offs, value_offs,
                in_head[:, None], in_head[None, :],
            )  # fmt: skip
        is_visible = offs_m[:, None] - offs_n[None, :] < sliding_window
        acc, m_i, l_i, _ = update(
            acc, m_i, l_i, query, key, value, m_i, m_i, is_visible, scale, soft_cap,
            PLAIN, DTYPE, DOT, HAS_SOFT_CAP, HAS_WINDOW,
        )  # fmt: skip

    # The program's own rows. A descriptor would read into the next sequence here, and 0 · infinity is no 0.
    for start in range(first_row, tl.minimum(first_row + BLOCK_M, num_new), BLOCK_N):
        offs_n = start + offs_tile
        in_chunk = offs_n < num_new
        key, value = _chunk_tile(
            key_base, value_base, start, stride_key_token, stride_value_token, key_offs, value_offs,
            in_chunk[None, :] & in_head[:, None], in_chunk[:, None] & in_head[None, :],
        )  # fmt: skip
        distance = offs_m[:, None] - offs_n[None, :]
        is_visible = distance >= 0
        if HAS_WINDOW:
            is_visible = is_visible & (distance < sliding_window)
        acc, m_i, l_i, _ = update(
            acc, m_i, l_i, query, key, value, m_i, m_i, is_visible, scale, soft_cap,
            PLAIN, DTYPE, DOT, HAS_SOFT_CAP, True,
        )  # fmt: skip

    output = (acc / l_i[:, None]).to(DTYPE)
    tl.store(output_ptr + (rows * num_heads + head) * head_dim + offs_d[None, :], output, mask=row_mask)


def prefill_attention(
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
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch the kernel; arguments and result as `forebay_kernels.prefill_attention`."""
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    prefill_attention_launch(
        output, query, key, value, key_cache, value_cache, block_table, cu_seqlens_q, context_lens, max_seqlen_q,
        scale, sliding_window, soft_cap, key_scales, value_scales, target=target_of(query.device),
    ).run()  # fmt: skip
    return output


def prefill_attention_launch(
    output: torch.Tensor,
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
    *,
    target: Target,
) -> Launch:
    """Return the launch of `prefill_attention` that writes to output, contiguous. Pure."""
    num_heads, head_dim = query.shape[1:]
    block_d = max(block_of(head_dim), 16)
    uses_tma = target.copies_tiles and _can_be_described(key) and _can_be_described(value)
    block_m, block_n, block_prefix, num_warps, num_stages = _tiles(
        block_d * query.element_size(), target, is_quantized=key_scales is not None, uses_tma=uses_tma
    )
    return Launch(
        kernel=_prefill_attention_kernel,
        grid=(num_heads, triton.cdiv(max_seqlen_q, block_m), context_lens.shape[0]),
        arguments={
            "output_ptr": output,
            "query_ptr": query,
            "key_ptr": key,
            "value_ptr": value,
            "key_descriptor": TensorDescriptor.from_tensor(key, [block_n, 1, block_d]) if uses_tma else None,
            "value_descriptor": TensorDescriptor.from_tensor(value, [block_n, 1, block_d]) if uses_tma else None,
            "key_cache_ptr": as_bytes(key_cache),
            "value_cache_ptr": as_bytes(value_cache),
            # A tensor stands where none is needed: Triton's arguments have one type each.
            "key_scales_ptr": context_lens if key_scales is None else key_scales,
            "value_scales_ptr": context_lens if value_scales is None else value_scales,
            "block_table_ptr": block_table,
            "cu_seqlens_q_ptr": cu_seqlens_q,
            "context_lens_ptr": context_lens,
            "stride_query_token": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_key_token": key.stride(0),
            "stride_key_head": key.stride(1),
            "stride_value_token": value.stride(0),
            "stride_value_head": value.stride(1),
            "stride_block_table": block_table.stride(0),
            "num_heads": num_heads,
            "num_kv_heads": key.shape[1],
            "head_dim": head_dim,
            "scale": scale * LOG2_E,
            "soft_cap": soft_cap * LOG2_E,
            "sliding_window": sliding_window,
            "FORMAT": format_of(key_cache.dtype),
            "DOT": dot_type(query.dtype),
            "USES_TMA": uses_tma,
            "HAS_WINDOW": sliding_window > 0,
            "HAS_SOFT_CAP": soft_cap > 0,
            "BLOCK_SIZE": key_cache.shape[1],
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_PREFIX": block_prefix,
            "BLOCK_D": block_d,
        },
        num_warps=num_warps,
        num_stages=num_stages,
    )


def _can_be_described(tensor: torch.Tensor) -> bool:
    """Say whether hardware can copy tiles of a tensor: it starts, and its rows start, at multiples of 16 bytes.

    cuTensorMapEncodeTiled, CUDA driver API.
    """
    row_bytes = [stride * tensor.element_size() for stride in tensor.stride()[:-1]]
    return tensor.numel() > 0 and all(number % 16 == 0 for number in (tensor.data_ptr(), *row_bytes))


def _tiles(row_bytes: int, target: Target, *, is_quantized: bool, uses_tma: bool) -> tuple[int, int, int, int, int]:
    """Choose (BLOCK_M, BLOCK_N, BLOCK_PREFIX, num_warps, num_stages) for heads of row_bytes.

    The largest that the compile gate finds without spills. A tile of the prefix is narrower, because its pointers, 64
    bits for each element, lie in registers. Not yet measured on a GPU.
    """
    if target.backend == "hip" and target.warp_size == 32:
        # RDNA: half the threads in as many warps, and half of CDNA's registers for each.
        return 32, 16, 16, 8, 1
    if target.backend == "hip":
        return 64, 32 if row_bytes <= 256 else 16, 16, 4, 1
    if not target.has_bfloat16:
        # Before Ampere Triton multiplies without matrix units, and all operands lie in registers.
        return 16, 16, 16, 4, 1
    if row_bytes <= 128:
        return 128, 64, 32, 8, 2
    if row_bytes <= 256:
        if is_quantized and target.multiplies_from_registers:
            return 64, 32, 16, 4, 2
        # Hopper's matrix products read keys from shared memory, elsewhere they pass through registers; so do pointers.
        return (128, 64, 32, 8, 2) if target.arch == 90 and uses_tma else (128, 32, 16, 8, 2)
    return (64, 32, 16, 8, 2) if row_bytes <= 512 else (64, 16, 16, 8, 1)
