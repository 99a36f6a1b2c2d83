"""Decode attention in Triton: a sequence's keys are split among programs, a second kernel combines what they found.

Bound by memory: keys and values are read once, for all query heads that share them. Dao et al. 2023, "Flash-Decoding
for long-context inference". A sequence's splits depend on its own length alone, never on its batch.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.attention_mass import mass_launch
from forebay_kernels.gpu.attention_tile import LOG2_E, cached_tile, update
from forebay_kernels.gpu.decode_splits import MAX_SPLITS, num_splits_of, split_tokens
from forebay_kernels.gpu.eight_bits import as_bytes, format_of
from forebay_kernels.gpu.launch import Launch, block_of, dot_type
from forebay_kernels.targets import Target, target_of


@triton.jit  # type: ignore[untyped-decorator]
def _split_kernel(  # type: ignore[no-untyped-def]
    partial_ptr,  # [num_seqs, num_heads, num_splits, head_dim], float32, contiguous
    log_sum_ptr,  # [num_seqs, num_heads, num_splits], float32, contiguous
    run_log_sums_ptr,  # [num_seqs, num_heads, num_runs], float32, contiguous; unused unless HAS_MASS
    query_ptr,  # [num_seqs, num_heads, head_dim]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, head_dim], contiguous
    value_cache_ptr,  # as key_cache
    key_scales_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads], float32; unused where FORMAT is PLAIN
    value_scales_ptr,  # as key_scales
    block_table_ptr,  # [num_seqs, max_blocks], int32
    seq_lens_ptr,  # [num_seqs], int32
    stride_query_token,
    stride_query_head,
    stride_block_table,
    num_heads,
    num_kv_heads,
    num_splits,
    num_runs,
    head_dim,
    scale,
    soft_cap,
    sliding_window,
    FORMAT: tl.constexpr,
    DOT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_MASS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RUN: tl.constexpr,
):
    """Attend from BLOCK_HEADS heads that share one key head to one split of one sequence's keys.

    Stores the split's softmax-weighted mean of the values, and log2 of the sum of its weights; with HAS_MASS also log2
    of the sum of each RUN tokens' weights.
    """
    split = tl.program_id(0)
    seq = tl.program_id(2).to(tl.int64)
    group_size = num_heads // num_kv_heads
    groups_of_kv_head = tl.cdiv(group_size, BLOCK_HEADS)
    kv_head = tl.program_id(1) // groups_of_kv_head
    in_group = tl.program_id(1) % groups_of_kv_head * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    heads = kv_head * group_size + in_group

    seq_len = tl.load(seq_lens_ptr + seq)
    first_key = tl.maximum(seq_len - sliding_window, 0) if HAS_WINDOW else 0
    split_length = split_tokens(seq_len - first_key)
    split_start = first_key + split * split_length
    if split_start >= seq_len:
        return
    split_end = tl.minimum(split_start + split_length, seq_len)
    DTYPE: tl.constexpr = query_ptr.dtype.element_ty

    offs_d = tl.arange(0, BLOCK_D)
    offs_tile = tl.arange(0, BLOCK_N)
    in_head = offs_d < head_dim
    is_head = in_group < group_size
    query = tl.load(
        query_ptr + seq * stride_query_token + heads[:, None] * stride_query_head + offs_d[None, :],
        mask=is_head[:, None] & in_head[None, :],
        other=0.0,
    ).to(DOT)

    acc = tl.zeros((BLOCK_HEADS, BLOCK_D), dtype=tl.float32)
    m_i = tl.full((BLOCK_HEADS,), -1.0e30, dtype=tl.float32)
    l_i = tl.zeros((BLOCK_HEADS,), dtype=tl.float32)
    table_ptr = block_table_ptr + seq * stride_block_table
    for start in range(split_start, split_end, BLOCK_N):
        offs_n = start + offs_tile
        in_split = offs_n < split_end
        key, value, key_scale, value_scale = cached_tile(
            key_cache_ptr, value_cache_ptr, key_scales_ptr, value_scales_ptr, table_ptr, offs_n, in_split, offs_d,
            in_head, kv_head, num_kv_heads, head_dim, FORMAT, BLOCK_SIZE,
        )  # fmt: skip
        acc, m_i, l_i, weights = update(
            acc, m_i, l_i, query, key, value, key_scale, value_scale, in_split[None, :], scale, soft_cap,
            FORMAT, DTYPE, DOT, HAS_SOFT_CAP, True,
        )  # fmt: skip
        if HAS_MASS:
            # Splits start at whole tiles, for there is no window, and tiles at whole runs of RUN tokens.
            runs = start // RUN + tl.arange(0, BLOCK_N // RUN)
            sums = tl.sum(tl.reshape(weights, (BLOCK_HEADS, BLOCK_N // RUN, RUN)), 2)
            tl.store(
                run_log_sums_ptr + (seq * num_heads + heads[:, None]) * num_runs + runs[None, :],
                # A run whose weights are all too small for float32 keeps a mass of next to nothing.
                m_i[:, None] + tl.log2(tl.maximum(sums, 1.0e-30)),
                mask=is_head[:, None] & (runs * RUN < split_end)[None, :],
            )

    splits = (seq * num_heads + heads) * num_splits + split
    tl.store(log_sum_ptr + splits, m_i + tl.log2(l_i), mask=is_head)
    tl.store(
        partial_ptr + splits[:, None] * head_dim + offs_d[None, :],
        acc / l_i[:, None],
        mask=is_head[:, None] & in_head[None, :],
    )


@triton.jit  # type: ignore[untyped-decorator]
def _combine_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_seqs, num_heads, head_dim], contiguous
    partial_ptr,  # [num_seqs, num_heads, num_splits, head_dim], float32, contiguous
    log_sum_ptr,  # [num_seqs, num_heads, num_splits], float32, contiguous
    seq_lens_ptr,  # [num_seqs], int32
    num_heads,
    num_splits,
    head_dim,
    sliding_window,
    HAS_WINDOW: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Weigh the splits of one head of one sequence by the sums of their weights, and add them up."""
    head = tl.program_id(0)
    seq = tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq)
    num_keys = tl.minimum(seq_len, sliding_window) if HAS_WINDOW else seq_len
    # Always all of MAX_SPLITS: the order of the sum must not depend on how many the batch has room for.
    offs_split = tl.arange(0, MAX_SPLITS)
    offs_d = tl.arange(0, BLOCK_D)
    is_split = offs_split < tl.cdiv(num_keys, split_tokens(num_keys))
    splits = (seq * num_heads + head) * num_splits + offs_split
    log_sums = tl.load(log_sum_ptr + splits, mask=is_split, other=-1.0e30)
    partial = tl.load(
        partial_ptr + splits[:, None] * head_dim + offs_d[None, :],
        mask=is_split[:, None] & (offs_d < head_dim)[None, :],
        other=0.0,
    )  # [MAX_SPLITS, BLOCK_D]
    weights = tl.exp2(log_sums - tl.max(log_sums, 0))
    # A sequence of no tokens has no splits: its partials are zeros, and its weights 1.
    output = tl.sum(weights[:, None] * partial, 0) / tl.sum(weights, 0)
    output_row = output_ptr + (seq * num_heads + head) * head_dim
    tl.store(output_row + offs_d, output.to(output_ptr.dtype.element_ty), mask=offs_d < head_dim)


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
    attention_mass: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch two kernels, or three; arguments, effect and result as `forebay_kernels.decode_attention`."""
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    num_seqs, num_heads, head_dim = query.shape
    num_splits = num_splits_of(min(max_seq_len, sliding_window or max_seq_len))
    partial = torch.empty((num_seqs, num_heads, num_splits, head_dim), dtype=torch.float32, device=query.device)
    log_sum = torch.empty((num_seqs, num_heads, num_splits), dtype=torch.float32, device=query.device)
    run_log_sums = None
    if attention_mass is not None:
        num_runs = block_table.shape[1] * runs_of_block(query, key_cache)
        run_log_sums = torch.empty((num_seqs, num_heads, num_runs), dtype=torch.float32, device=query.device)
    split_launch(
        partial, log_sum, query, key_cache, value_cache, block_table, seq_lens, scale, sliding_window, soft_cap,
        key_scales, value_scales, run_log_sums, target=target_of(query.device),
    ).run()  # fmt: skip
    combine_launch(output, partial, log_sum, seq_lens, sliding_window).run()
    if attention_mass is not None and run_log_sums is not None:
        mass_launch(attention_mass, run_log_sums, log_sum, seq_lens, key_cache.shape[1]).run()
    return output


def split_launch(
    partial: torch.Tensor,
    log_sum: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    sliding_window: int,
    soft_cap: float,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
    run_log_sums: torch.Tensor | None = None,
    *,
    target: Target,
) -> Launch:
    """Return the launch of the first stage, which writes to partial, log_sum and, where there is one, run_log_sums.

    Pure. run_log_sums is [num_seqs, num_heads, max_blocks * runs_of_block], float32, contiguous.
    """
    num_seqs, num_heads, num_splits, head_dim = partial.shape
    num_kv_heads = key_cache.shape[2]
    group_size = num_heads // num_kv_heads
    # tl.dot wants 16 rows; more than 64 would keep one program's registers from holding a head of 256.
    block_heads = min(max(block_of(group_size), 16), 64)
    block_n = _tile_tokens(query)
    return Launch(
        kernel=_split_kernel,
        grid=(num_splits, num_kv_heads * triton.cdiv(group_size, block_heads), num_seqs),
        arguments={
            "partial_ptr": partial,
            "log_sum_ptr": log_sum,
            # A tensor stands where none is needed: Triton's arguments have one type each.
            "run_log_sums_ptr": log_sum if run_log_sums is None else run_log_sums,
            "query_ptr": query,
            "key_cache_ptr": as_bytes(key_cache),
            "value_cache_ptr": as_bytes(value_cache),
            "key_scales_ptr": seq_lens if key_scales is None else key_scales,
            "value_scales_ptr": seq_lens if value_scales is None else value_scales,
            "block_table_ptr": block_table,
            "seq_lens_ptr": seq_lens,
            "stride_query_token": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_block_table": block_table.stride(0),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "num_splits": num_splits,
            "num_runs": 0 if run_log_sums is None else run_log_sums.shape[2],
            "head_dim": head_dim,
            "scale": scale * LOG2_E,
            "soft_cap": soft_cap * LOG2_E,
            "sliding_window": sliding_window,
            "FORMAT": format_of(key_cache.dtype),
            "DOT": dot_type(query.dtype),
            "HAS_WINDOW": sliding_window > 0,
            "HAS_SOFT_CAP": soft_cap > 0,
            "HAS_MASS": run_log_sums is not None,
            "BLOCK_SIZE": key_cache.shape[1],
            "BLOCK_HEADS": block_heads,
            "BLOCK_N": block_n,
            "BLOCK_D": max(block_of(head_dim), 16),
            "RUN": min(key_cache.shape[1], block_n),
        },
        # 256 threads on AMD, whose wavefronts have 64 lanes on CDNA and 32 on RDNA.
        num_warps=256 // target.warp_size if target.backend == "hip" else 4,
        num_stages=1 if target.backend == "hip" else 3,
    )


def _tile_tokens(query: torch.Tensor) -> int:
    """Return how many keys one step takes."""
    # 16 KiB of keys and of values a tile: three of each are on their way, or two of the 64 KiB that AMD has.
    return max(min(64, 16384 // (max(block_of(query.shape[2]), 16) * query.element_size())), 16)


def runs_of_block(query: torch.Tensor, key_cache: torch.Tensor) -> int:
    """Return into how many runs a block is cut whose mass is wanted: as many as the tiles that it takes."""
    return max(key_cache.shape[1] // _tile_tokens(query), 1)


def combine_launch(
    output: torch.Tensor, partial: torch.Tensor, log_sum: torch.Tensor, seq_lens: torch.Tensor, sliding_window: int
) -> Launch:
    """Return the launch of the second stage, which writes to output, contiguous. Pure."""
    num_seqs, num_heads, num_splits, head_dim = partial.shape
    return Launch(
        kernel=_combine_kernel,
        grid=(num_heads, num_seqs),
        arguments={
            "output_ptr": output,
            "partial_ptr": partial,
            "log_sum_ptr": log_sum,
            "seq_lens_ptr": seq_lens,
            "num_heads": num_heads,
            "num_splits": num_splits,
            "head_dim": head_dim,
            "sliding_window": sliding_window,
            "HAS_WINDOW": sliding_window > 0,
            "BLOCK_D": max(block_of(head_dim), 16),
        },
        num_warps=4,
    )
