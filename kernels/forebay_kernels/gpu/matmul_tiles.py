"""Tiles of the matrix products, and the epilogue that they share."""

from dataclasses import dataclass

import triton
import triton.language as tl

from forebay_kernels.gpu.launch import block_of
from forebay_kernels.targets import Target


@dataclass(frozen=True, slots=True)
class Tiles:
    """What one program computes, and how."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def tiles_of(num_tokens: int, *, step_bytes: int, target: Target, max_block_n: int = 128) -> Tiles:
    """Choose tiles for num_tokens rows by arithmetic; not yet measured on a GPU.

    Few rows: narrow tiles, so that even 4096 channels keep over a hundred multiprocessors reading weights. Many rows:
    as wide as registers allow. How the sum over in_features is cut does not depend on the number of rows.

    Args:
        num_tokens: rows of x.
        step_bytes: bytes of a row of x and of a channel that one step takes, as they are multiplied.
        max_block_n: widest tile whose program still has registers for what it does beside sums.
        target: whose shared memory holds num_stages tiles of both; AMD's warps have 64 lanes on CDNA, 32 on RDNA.
    """
    block_m = min(max(block_of(num_tokens), 16), 128 if step_bytes <= 256 else 64)
    block_n = min(32 if block_m == 16 else 64 if block_m < 128 else 128, max_block_n)
    if target.backend == "hip":
        return Tiles(block_m, block_n, (512 if block_m == 128 else 256) // target.warp_size, 1)
    return Tiles(block_m, block_n, 8 if block_m == 128 else 4, 4 if block_m == 16 else 2)


@triton.jit  # type: ignore[untyped-decorator]
def add_and_store(  # type: ignore[no-untyped-def]
    output_ptr,
    bias_ptr,
    residual_ptr,
    scaled,
    offs_m,
    offs_n,
    num_tokens,
    out_features,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Add bias and residual to a tile, [BLOCK_M, BLOCK_N], float32, and store it rounded."""
    in_row = offs_n < out_features
    mask = (offs_m < num_tokens)[:, None] & in_row[None, :]
    offs = offs_m.to(tl.int64)[:, None] * out_features + offs_n[None, :]
    if HAS_BIAS:
        scaled = scaled + tl.load(bias_ptr + offs_n, mask=in_row, other=0.0).to(tl.float32)[None, :]
    if HAS_RESIDUAL:
        scaled = scaled + tl.load(residual_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(output_ptr + offs, scaled.to(output_ptr.dtype.element_ty), mask=mask)
