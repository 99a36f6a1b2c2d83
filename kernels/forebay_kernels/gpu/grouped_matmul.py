"""Matrix products of groups of rows in Triton, each group with a weight of its own: those of a mixture of experts.

Rows are pairs of a token and one of its experts, sorted by expert; a tile has rows of one expert only.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import as_bytes
from forebay_kernels.gpu.launch import Launch, block_of
from forebay_kernels.gpu.matmul_tiles import tiles_of
from forebay_kernels.gpu.scaled_products import bytes_per_k, product_constants, scaled_products
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_kernels.targets import Target

# Elements of in_features that one step takes. 128 bytes fill a line of the cache.
_BLOCK_K = {1: SCALE_BLOCK, 2: 64, 4: 32}


@triton.jit  # type: ignore[untyped-decorator]
def tile_of_program(starts_ptr, num_experts, BLOCK_M: tl.constexpr, BLOCK_EXPERTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (expert, first, last): the expert of this program's tile of rows, and its rows' places in order.

    Each expert has as many tiles as its pairs fill, the last one in part. Beyond all tiles expert is num_experts or
    more.
    """
    tile = tl.program_id(0)
    experts = tl.arange(0, BLOCK_EXPERTS)
    is_expert = experts < num_experts
    starts = tl.load(starts_ptr + experts, mask=is_expert, other=0)
    stops = tl.load(starts_ptr + experts + 1, mask=is_expert, other=0)
    tiles = tl.cdiv(stops - starts, BLOCK_M)
    last_tiles = tl.cumsum(tiles, 0)
    expert = tl.sum((last_tiles <= tile).to(tl.int32), 0)
    is_mine = experts == expert
    tile_of_expert = tile - tl.sum(tl.where(is_mine, last_tiles - tiles, 0), 0)
    first = tl.sum(tl.where(is_mine, starts, 0), 0) + tile_of_expert * BLOCK_M
    return expert, first, tl.sum(tl.where(is_mine, stops, 0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _grouped_matmul_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_pairs, out_features], contiguous
    x_ptr,  # [num_pairs / pairs_of_row, in_features]
    x_scales_ptr,  # [num_pairs / pairs_of_row] or [.., num_k_blocks], float32; unused where x is PLAIN
    weights_ptr,  # [num_experts, out_features, in_features], contiguous
    weight_scales_ptr,  # [num_experts, out_features] or [num_experts, num_n_blocks, num_k_blocks], float32
    order_ptr,  # [num_pairs], int32
    starts_ptr,  # [num_experts + 1], int32
    stride_x_row,
    pairs_of_row,
    num_experts,
    out_features,
    in_features,
    MODE: tl.constexpr,
    X_FORMAT: tl.constexpr,
    WEIGHT_FORMAT: tl.constexpr,
    DTYPE: tl.constexpr,
    DOT: tl.constexpr,
    SCALES_BY_BLOCK: tl.constexpr,
    IS_EVEN: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply BLOCK_M pairs of one expert with BLOCK_N of its channels; row i of output is that of pair i.

    Neighbouring programs have the same channels, whose weights the second finds in the cache.
    """
    expert, first, last = tile_of_program(starts_ptr, num_experts, BLOCK_M, BLOCK_EXPERTS)
    if expert >= num_experts:
        return
    places = first + tl.arange(0, BLOCK_M)
    is_pair = places < last
    pairs = tl.load(order_ptr + places, mask=is_pair, other=0).to(tl.int64)
    rows = pairs // pairs_of_row
    first_n = tl.program_id(1) * BLOCK_N
    offs_n = first_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    is_channel = offs_n < out_features

    # 64 bits to the expert's tile, 32 within it.
    channel = expert.to(tl.int64) * out_features + first_n
    weight_tile_ptr = weights_ptr + channel * in_features
    weight_tile_ptr += tl.arange(0, BLOCK_N)[None, :] * in_features + offs_k[:, None]
    if SCALES_BY_BLOCK:
        num_k_blocks = tl.cdiv(in_features, BLOCK_K)
        x_scale_ptr = x_scales_ptr + rows * num_k_blocks
        # A block of scales has BLOCK_K channels, as it has BLOCK_K elements of each.
        scale_rows = expert * tl.cdiv(out_features, BLOCK_K) + offs_n // BLOCK_K
        weight_scale_ptr = weight_scales_ptr + scale_rows * num_k_blocks
    else:
        x_scale_ptr = x_scales_ptr + rows
        weight_scale_ptr = weight_scales_ptr + expert * out_features + offs_n
    products = scaled_products(
        x_ptr + rows[:, None] * stride_x_row + offs_k[None, :], weight_tile_ptr, x_scale_ptr, weight_scale_ptr,
        is_pair, is_channel, in_features, MODE, X_FORMAT, WEIGHT_FORMAT, DTYPE, DOT, SCALES_BY_BLOCK, IS_EVEN,
        BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    tl.store(
        output_ptr + pairs[:, None] * out_features + offs_n[None, :],
        products.to(output_ptr.dtype.element_ty),
        mask=is_pair[:, None] & is_channel[None, :],
    )


def grouped_matmul_launch(
    output: torch.Tensor,
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    weights: torch.Tensor,
    weight_scales: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
    *,
    target: Target,
) -> Launch:
    """Return the launch that multiplies every pair's row of x with its expert's weight, into output. Pure.

    Args:
        output: [num_pairs, out_features], contiguous.
        x: [num_pairs, in_features], or one row for several successive pairs.
        x_scales: of x, where it has eight bits, else None.
        weights: [num_experts, out_features, in_features], contiguous.
        weight_scales: of weights, where they have eight bits, else None.
        order: as `sort_launch` fills it.
        starts: as `sort_launch` fills it.
        target: to run on.
    """
    num_experts, out_features, in_features = weights.shape
    num_pairs = output.shape[0]
    scales_by_block = weight_scales is not None and weight_scales.dim() == 3
    constants = product_constants(x, weights, target)
    block_k = _BLOCK_K[weights.itemsize]
    # The rows of a group lie anywhere: before Hopper their addresses leave no registers for the widest tiles.
    is_narrow = scales_by_block or (weights.itemsize == 1 and target.multiplies_from_registers)
    tiles = tiles_of(
        triton.cdiv(num_pairs, num_experts),
        step_bytes=bytes_per_k(x, constants) * block_k,
        target=target,
        max_block_n=64 if is_narrow else 128,
    )
    return Launch(
        kernel=_grouped_matmul_kernel,
        grid=(num_tiles_of(num_pairs, num_experts, tiles.block_m), triton.cdiv(out_features, tiles.block_n)),
        arguments={
            "output_ptr": output,
            "x_ptr": as_bytes(x),
            # A tensor stands where none is needed: Triton's arguments have one type each.
            "x_scales_ptr": starts if x_scales is None else x_scales,
            "weights_ptr": as_bytes(weights),
            "weight_scales_ptr": starts if weight_scales is None else weight_scales,
            "order_ptr": order,
            "starts_ptr": starts,
            "stride_x_row": x.stride(0),
            "pairs_of_row": num_pairs // max(x.shape[0], 1),
            "num_experts": num_experts,
            "out_features": out_features,
            "in_features": in_features,
            **constants,
            "SCALES_BY_BLOCK": scales_by_block,
            "IS_EVEN": in_features % block_k == 0,
            "BLOCK_EXPERTS": block_of(num_experts),
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "BLOCK_K": block_k,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def num_tiles_of(num_pairs: int, num_experts: int, block_m: int) -> int:
    """Return the most tiles of block_m rows that num_pairs fill when no tile has pairs of two experts."""
    # Every expert that has pairs begins a tile; the others' pairs fill whole ones.
    num_used = min(num_pairs, num_experts)
    return num_used + (num_pairs - num_used) // block_m
