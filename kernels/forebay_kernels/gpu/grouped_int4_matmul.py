"""Matrix products of groups of rows with four-bit weights in Triton: those of a mixture of experts."""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.grouped_matmul import num_tiles_of, tile_of_program
from forebay_kernels.gpu.int4_products import int4_products
from forebay_kernels.gpu.launch import Launch, block_of, dot_type
from forebay_kernels.gpu.matmul_tiles import tiles_of
from forebay_kernels.int4_weights import chunk_of
from forebay_kernels.targets import Target


@triton.jit  # type: ignore[untyped-decorator]
def _grouped_int4_matmul_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_pairs, out_features], contiguous
    x_ptr,  # [num_pairs / pairs_of_row, in_features]
    packed_ptr,  # [num_experts, out_features, in_features / 2], uint8, contiguous
    scales_ptr,  # [num_experts, out_features, num_groups], contiguous
    zeros_ptr,  # [num_experts, out_features, num_groups], uint8, contiguous; unused unless HAS_ZEROS
    order_ptr,  # [num_pairs], int32
    starts_ptr,  # [num_experts + 1], int32
    stride_x_row,
    pairs_of_row,
    num_experts,
    out_features,
    in_features,
    num_groups,
    chunks_of_group,
    DOT: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HALF: tl.constexpr,
):
    """Multiply BLOCK_M pairs of one expert with BLOCK_N of its channels; row i of output is that of pair i."""
    expert, first, last = tile_of_program(starts_ptr, num_experts, BLOCK_M, BLOCK_EXPERTS)
    if expert >= num_experts:
        return
    places = first + tl.arange(0, BLOCK_M)
    is_pair = places < last
    pairs = tl.load(order_ptr + places, mask=is_pair, other=0).to(tl.int64)
    rows = pairs // pairs_of_row
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_channel = offs_n < out_features
    first_channel = expert.to(tl.int64) * out_features
    products = int4_products(
        x_ptr, rows[:, None] * stride_x_row,
        packed_ptr + (first_channel + offs_n)[None, :] * (in_features // 2) + tl.arange(0, HALF)[:, None],
        scales_ptr + first_channel * num_groups, zeros_ptr + first_channel * num_groups, offs_n * num_groups, order_ptr,
        is_pair, is_channel, 0, in_features // (2 * HALF), chunks_of_group, x_ptr.dtype.element_ty, DOT, HAS_ZEROS,
        False, BLOCK_M, BLOCK_N, HALF,
    )  # fmt: skip
    tl.store(
        output_ptr + pairs[:, None] * out_features + offs_n[None, :],
        products.to(output_ptr.dtype.element_ty),
        mask=is_pair[:, None] & is_channel[None, :],
    )


def grouped_int4_matmul_launch(
    output: torch.Tensor,
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
    *,
    target: Target,
) -> Launch:
    """Return the launch that multiplies every pair's row of x with its expert's weight, into output. Pure.

    Args:
        output: [num_pairs, out_features], contiguous.
        x: [num_pairs, in_features], or one row for several successive pairs.
        packed: [num_experts, out_features, in_features / 2], uint8, contiguous, as `int4_weights` packs it.
        scales: [num_experts, out_features, num_groups], contiguous.
        zeros: as scales, uint8; None: 8.
        order: as `sort_launch` fills it.
        starts: as `sort_launch` fills it.
        target: to run on.
    """
    num_experts, out_features, num_bytes = packed.shape
    num_pairs, in_features, num_groups = output.shape[0], 2 * num_bytes, scales.shape[2]
    chunk = chunk_of(in_features // num_groups)
    max_block_n = 32 if target.multiplies_from_registers else 64
    rows_of_expert = triton.cdiv(num_pairs, num_experts)
    tiles = tiles_of(rows_of_expert, step_bytes=4 * 128, target=target, max_block_n=max_block_n)
    return Launch(
        kernel=_grouped_int4_matmul_kernel,
        grid=(num_tiles_of(num_pairs, num_experts, tiles.block_m), triton.cdiv(out_features, tiles.block_n)),
        arguments={
            "output_ptr": output,
            "x_ptr": x,
            "packed_ptr": packed,
            "scales_ptr": scales,
            # A tensor stands where none is needed: Triton's arguments have one type each.
            "zeros_ptr": packed if zeros is None else zeros,
            "order_ptr": order,
            "starts_ptr": starts,
            "stride_x_row": x.stride(0),
            "pairs_of_row": num_pairs // max(x.shape[0], 1),
            "num_experts": num_experts,
            "out_features": out_features,
            "in_features": in_features,
            "num_groups": num_groups,
            "chunks_of_group": in_features // num_groups // chunk,
            "DOT": dot_type(x.dtype),
            "HAS_ZEROS": zeros is not None,
            "BLOCK_EXPERTS": block_of(num_experts),
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "HALF": chunk // 2,
        },
        num_warps=8 if tiles.block_m == 64 and max_block_n == 32 else tiles.num_warps,
        num_stages=tiles.num_stages,
    )
