"""The loop of matrix products with four-bit weights in Triton, chunk by chunk as `int4_weights` packs them."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def int4_products(  # type: ignore[no-untyped-def]
    x_ptr,
    x_offs,
    packed_tile_ptr,
    scales_ptr,
    zeros_ptr,
    channel_groups,
    permutation_ptr,
    is_row,
    is_channel,
    first_chunk,
    last_chunk,
    chunks_of_group,
    DTYPE: tl.constexpr,
    DOT: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_PERMUTATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HALF: tl.constexpr,
):
    """Return the products of BLOCK_M rows and BLOCK_N channels over some chunks, [BLOCK_M, BLOCK_N], float32.

    Args:
        x_ptr: where the rows are counted from. One address and small offsets take fewer registers than many addresses.
        x_offs: [BLOCK_M, 1]: where each row starts.
        packed_tile_ptr: [HALF, BLOCK_N]: where the channels' first chunk lies.
        scales_ptr: of the weight.
        zeros_ptr: of the weight; unused unless HAS_ZEROS.
        channel_groups: [BLOCK_N]: the first group of each channel.
        permutation_ptr: [in_features], int32: which element of x meets each number; unused unless HAS_PERMUTATION.
        is_row: [BLOCK_M]: which rows there are.
        is_channel: [BLOCK_N]: which channels there are.
        first_chunk: to begin with.
        last_chunk: to end before.
        chunks_of_group: chunks that share a scale.
        DTYPE: of x; what numbers are rounded to, exactly.
        DOT: what is multiplied.
        HAS_ZEROS: whether groups have zeros of their own; else all are 8.
        HAS_PERMUTATION: whether numbers are not in the order of x.
        BLOCK_M: rows of the tile.
        BLOCK_N: channels of the tile.
        HALF: bytes of a chunk of one channel, which are 2 * HALF numbers.
    """
    offs_half = tl.arange(0, HALF)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for chunk in range(first_chunk, last_chunk):
        packed = tl.load(packed_tile_ptr + chunk * HALF, mask=is_channel[None, :], other=0)
        group_offs = channel_groups + chunk // chunks_of_group
        scale = tl.load(scales_ptr + group_offs, mask=is_channel, other=0.0).to(tl.float32)
        zero = 8.0
        if HAS_ZEROS:
            zero = tl.load(zeros_ptr + group_offs, mask=is_channel, other=0).to(tl.float32)[None, :]
        low = ((packed & 15).to(tl.float32) - zero).to(DTYPE).to(DOT)
        high = ((packed >> 4).to(tl.float32) - zero).to(DTYPE).to(DOT)
        offs_low = chunk * 2 * HALF + offs_half
        offs_high = offs_low + HALF
        if HAS_PERMUTATION:
            offs_low = tl.load(permutation_ptr + offs_low)
            offs_high = tl.load(permutation_ptr + offs_high)
        x_low = tl.load(x_ptr + x_offs + offs_low[None, :], mask=is_row[:, None], other=0.0).to(DOT)
        x_high = tl.load(x_ptr + x_offs + offs_high[None, :], mask=is_row[:, None], other=0.0).to(DOT)
        sums = tl.dot(x_low, low, input_precision="ieee")
        sums = tl.dot(x_high, high, sums, input_precision="ieee")
        acc += sums * scale[None, :]
    return acc
