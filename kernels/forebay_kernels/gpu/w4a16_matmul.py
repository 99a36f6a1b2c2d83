"""Matrix products with weights of four bits in Triton: GPTQ, AWQ and compressed-tensors after one repack at load.

For few tokens bound by memory: the weight is read once, and in_features is split among programs, so that a small layer
keeps the whole GPU reading. For many tokens one program goes through the splits itself and adds them up in the same
order, so that a row's bits do not depend on how many rows there are.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.int4_products import int4_products
from forebay_kernels.gpu.launch import Launch, dot_type
from forebay_kernels.gpu.matmul_tiles import add_and_store, tiles_of
from forebay_kernels.int4_weights import chunk_of
from forebay_kernels.targets import Target, target_of

# Most rows for which in_features is split among programs: with more, there are programs enough, and the partial sums
# would cost more memory traffic than the weight. By arithmetic: not yet measured on a GPU.
_MAX_SPLIT_TOKENS = 32
# Programs that a product of few rows should have: about two for each multiprocessor of an H100. By arithmetic.
_WANTED_PROGRAMS = 256
_MAX_SPLITS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _w4a16_matmul_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, out_features], or float32 [num_splits, num_tokens, out_features] where IS_SPLIT
    x_ptr,  # [num_tokens, in_features]
    packed_ptr,  # [out_features, in_features / 2], uint8, contiguous
    scales_ptr,  # [out_features, num_groups], contiguous
    zeros_ptr,  # [out_features, num_groups], uint8, contiguous; unused unless HAS_ZEROS
    permutation_ptr,  # [in_features], int32; unused unless HAS_PERMUTATION
    bias_ptr,  # [out_features]; unused unless HAS_BIAS
    residual_ptr,  # [num_tokens, out_features], contiguous; unused unless HAS_RESIDUAL
    stride_x_token,
    num_tokens,
    out_features,
    in_features,
    num_groups,
    chunks_of_group,
    num_splits,
    chunks_of_split,
    DOT: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_PERMUTATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HALF: tl.constexpr,
):
    """Compute one tile, of one split or of all. A chunk is HALF bytes of a row of packed: 2 * HALF numbers."""
    first_m = tl.program_id(0) * BLOCK_M
    offs_m = first_m + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_half = tl.arange(0, HALF)
    is_token = offs_m < num_tokens
    is_channel = offs_n < out_features
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    # 64 bits to the tile, 32 within it.
    x_row_ptr = x_ptr + first_m.to(tl.int64) * stride_x_token
    x_offs = tl.arange(0, BLOCK_M)[:, None] * stride_x_token
    packed_tile_ptr = packed_ptr + offs_n.to(tl.int64)[None, :] * (in_features // 2) + offs_half[:, None]
    num_chunks = in_features // (2 * HALF)

    first_split = 0
    last_split = num_splits
    if IS_SPLIT:
        first_split = tl.program_id(2)
        last_split = first_split + 1
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for split in range(first_split, last_split):
        total += int4_products(
            x_row_ptr, x_offs, packed_tile_ptr, scales_ptr, zeros_ptr, offs_n * num_groups, permutation_ptr, is_token,
            is_channel, split * chunks_of_split, tl.minimum((split + 1) * chunks_of_split, num_chunks), chunks_of_group,
            DTYPE, DOT, HAS_ZEROS, HAS_PERMUTATION, BLOCK_M, BLOCK_N, HALF,
        )  # fmt: skip
    if IS_SPLIT:
        output_ptr += tl.program_id(2).to(tl.int64) * num_tokens * out_features
    add_and_store(
        output_ptr, bias_ptr, residual_ptr, total, offs_m, offs_n, num_tokens, out_features, HAS_BIAS, HAS_RESIDUAL
    )


@triton.jit  # type: ignore[untyped-decorator]
def _add_splits_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, out_features], contiguous
    partial_ptr,  # [num_splits, num_tokens, out_features], float32, contiguous
    bias_ptr,
    residual_ptr,
    num_tokens,
    out_features,
    num_splits,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add up the splits of BLOCK_N channels of one token, the first split first."""
    token = tl.program_id(0)
    offs_m = token + tl.arange(0, 1)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((1, BLOCK_N), dtype=tl.float32)
    for split in range(0, num_splits):
        row_ptr = partial_ptr + (tl.cast(split, tl.int64) * num_tokens + token) * out_features
        total += tl.load(row_ptr + offs_n, mask=offs_n < out_features, other=0.0)[None, :]
    add_and_store(
        output_ptr, bias_ptr, residual_ptr, total, offs_m, offs_n, num_tokens, out_features, HAS_BIAS, HAS_RESIDUAL
    )


def w4a16_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    permutation: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch one kernel or two; arguments and result as `forebay_kernels.w4a16_matmul`."""
    num_tokens, out_features = x.shape[0], packed.shape[0]
    output = torch.empty((num_tokens, out_features), dtype=x.dtype, device=x.device)
    target = target_of(x.device)
    num_splits = num_splits_of(packed)
    if num_tokens > _MAX_SPLIT_TOKENS or num_splits == 1:
        w4a16_matmul_launch(
            output, x, packed, scales, zeros, permutation, bias, residual, target=target
        ).run()  # fmt: skip
        return output
    partial = torch.empty((num_splits, num_tokens, out_features), dtype=torch.float32, device=x.device)
    w4a16_matmul_launch(partial, x, packed, scales, zeros, permutation, None, None, target=target).run()
    add_splits_launch(output, partial, bias, residual).run()
    return output


def num_splits_of(packed: torch.Tensor) -> int:
    """Return into how many parts in_features is cut: by the weight's shape alone, whatever the number of tokens."""
    out_features, num_bytes = packed.shape
    wanted = _WANTED_PROGRAMS // max(triton.cdiv(out_features, 32), 1)
    # At least 512 in_features a split.
    return int(max(min(wanted, _MAX_SPLITS, num_bytes // 256), 1))


def w4a16_matmul_launch(
    output: torch.Tensor,
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    permutation: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    target: Target,
) -> Launch:
    """Return the launch that writes to output: [num_tokens, out_features], or one of these for each split. Pure."""
    num_tokens, in_features = x.shape
    out_features = packed.shape[0]
    num_groups = scales.shape[1]
    chunk = chunk_of(in_features // num_groups)
    num_splits = num_splits_of(packed)
    is_split = output.dim() == 3
    # Before Hopper the numbers of a chunk pass through registers, where two accumulators lie already.
    max_block_n = 32 if target.multiplies_from_registers else 64
    tiles = tiles_of(num_tokens, step_bytes=4 * 128, target=target, max_block_n=max_block_n)
    grid = (triton.cdiv(num_tokens, tiles.block_m), triton.cdiv(out_features, tiles.block_n))
    return Launch(
        kernel=_w4a16_matmul_kernel,
        grid=(*grid, num_splits) if is_split else grid,
        arguments={
            "output_ptr": output,
            "x_ptr": x,
            "packed_ptr": packed,
            "scales_ptr": scales,
            # A tensor stands where none is needed: Triton's arguments have one type each.
            "zeros_ptr": packed if zeros is None else zeros,
            "permutation_ptr": packed if permutation is None else permutation,
            "bias_ptr": x if bias is None else bias,
            "residual_ptr": x if residual is None else residual,
            "stride_x_token": x.stride(0),
            "num_tokens": num_tokens,
            "out_features": out_features,
            "in_features": in_features,
            "num_groups": num_groups,
            "chunks_of_group": in_features // num_groups // chunk,
            "num_splits": num_splits,
            "chunks_of_split": triton.cdiv(in_features // chunk, num_splits),
            "DOT": dot_type(x.dtype),
            "IS_SPLIT": is_split,
            "HAS_ZEROS": zeros is not None,
            "HAS_PERMUTATION": permutation is not None,
            "HAS_BIAS": bias is not None,
            "HAS_RESIDUAL": residual is not None,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "HALF": chunk // 2,
        },
        num_warps=8 if tiles.block_m == 64 and max_block_n == 32 else tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def add_splits_launch(
    output: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> Launch:
    """Return the launch that adds the splits up and writes to output, contiguous. Pure."""
    num_splits, num_tokens, out_features = partial.shape
    return Launch(
        kernel=_add_splits_kernel,
        grid=(num_tokens, triton.cdiv(out_features, 1024)),
        arguments={
            "output_ptr": output,
            "partial_ptr": partial,
            "bias_ptr": output if bias is None else bias,
            "residual_ptr": output if residual is None else residual,
            "num_tokens": num_tokens,
            "out_features": out_features,
            "num_splits": num_splits,
            "HAS_BIAS": bias is not None,
            "HAS_RESIDUAL": residual is not None,
            "BLOCK_N": 1024,
        },
        num_warps=4,
    )
