"""The loop of every matrix product but the four-bit one in Triton: products of one tile's rows, scaled.

Operands are floats of one type, eight-bit numbers of one type, or a float and an eight-bit number.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import PLAIN, dequantize, format_of
from forebay_kernels.gpu.launch import dot_type
from forebay_kernels.targets import Target

# How operands are multiplied: as integers, as float8 by hardware, or converted to floats of 16 bits before.
_INTEGERS = tl.constexpr(0)
_FLOAT8 = tl.constexpr(1)
_CONVERTED = tl.constexpr(2)

_TRITON_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def product_constants(x: torch.Tensor, weight: torch.Tensor, target: Target) -> dict[str, Any]:
    """Return the constants of `scaled_products` that say how x and weight are multiplied on this target."""
    mode, converted = _CONVERTED, x.dtype
    if x.dtype == torch.int8:
        mode, converted = _INTEGERS, torch.float16
    elif x.dtype == torch.float8_e4m3fn:
        mode, converted = _FLOAT8 if target.multiplies_fp8 else _CONVERTED, torch.float16
    return {
        "MODE": mode.value,
        "X_FORMAT": format_of(x.dtype),
        "WEIGHT_FORMAT": format_of(weight.dtype),
        "DTYPE": _TRITON_TYPES[converted],
        "DOT": dot_type(converted),
    }


def bytes_per_k(x: torch.Tensor, constants: dict[str, Any]) -> int:
    """Return the bytes of an element of x and of one of the weight, as they are multiplied."""
    if constants["MODE"] != _CONVERTED.value:
        return 2
    return 2 * (torch.float16 if x.dtype == torch.float8_e4m3fn else x.dtype).itemsize


@triton.jit  # type: ignore[untyped-decorator]
def scaled_products(  # type: ignore[no-untyped-def]
    x_tile_ptr,
    weight_tile_ptr,
    x_scale_ptr,
    weight_scale_ptr,
    is_row,
    is_channel,
    in_features,
    MODE: tl.constexpr,
    X_FORMAT: tl.constexpr,
    WEIGHT_FORMAT: tl.constexpr,
    DTYPE: tl.constexpr,
    DOT: tl.constexpr,
    SCALES_BY_BLOCK: tl.constexpr,
    IS_EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the products of BLOCK_M rows of x and BLOCK_N channels of a weight, [BLOCK_M, BLOCK_N], float32.

    Args:
        x_tile_ptr: [BLOCK_M, BLOCK_K]: where the first elements of the rows lie.
        weight_tile_ptr: [BLOCK_K, BLOCK_N]: where the first elements of the channels lie.
        x_scale_ptr: [BLOCK_M]: where the scale of each row lies, or the first of those of its blocks; unused where
            X_FORMAT is PLAIN.
        weight_scale_ptr: [BLOCK_N]: likewise, of each channel; unused where WEIGHT_FORMAT is PLAIN.
        is_row: [BLOCK_M]: which rows there are.
        is_channel: [BLOCK_N]: which channels there are.
        in_features: elements of a row and of a channel.
        MODE: _INTEGERS, _FLOAT8 or _CONVERTED.
        X_FORMAT: of x.
        WEIGHT_FORMAT: of the weight.
        DTYPE: what is converted is rounded to.
        DOT: what is converted is multiplied as.
        SCALES_BY_BLOCK: whether each BLOCK_K elements have scales of their own.
        IS_EVEN: whether BLOCK_K divides in_features.
        BLOCK_M: rows of the tile.
        BLOCK_N: channels of the tile.
        BLOCK_K: elements that one step takes; decides where sums are cut, so it never depends on the number of rows.
    """
    offs_k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if MODE == _INTEGERS else tl.float32)
    for block in range(0, tl.cdiv(in_features, BLOCK_K)):
        x_mask = is_row[:, None]
        weight_mask = is_channel[None, :]
        if not IS_EVEN:
            in_features_left = offs_k < in_features - block * BLOCK_K
            x_mask = x_mask & in_features_left[None, :]
            weight_mask = weight_mask & in_features_left[:, None]
        x = tl.load(x_tile_ptr + block * BLOCK_K, mask=x_mask, other=0)
        weight = tl.load(weight_tile_ptr + block * BLOCK_K, mask=weight_mask, other=0)
        if MODE == _INTEGERS:
            acc = tl.dot(x, weight, acc, out_dtype=tl.int32)
        else:
            if MODE == _FLOAT8:
                x = x.to(tl.float8e4nv, bitcast=True)
                weight = weight.to(tl.float8e4nv, bitcast=True)
            else:
                x = dequantize(x, X_FORMAT, DTYPE).to(DOT)
                weight = dequantize(weight, WEIGHT_FORMAT, DTYPE).to(DOT)
            if SCALES_BY_BLOCK:
                x_scale = tl.load(x_scale_ptr + block, mask=is_row, other=0.0)
                weight_scale = tl.load(weight_scale_ptr + block, mask=is_channel, other=0.0)
                acc += tl.dot(x, weight, input_precision="ieee") * x_scale[:, None] * weight_scale[None, :]
            else:
                acc = tl.dot(x, weight, acc, input_precision="ieee")

    scaled = acc.to(tl.float32)
    if not SCALES_BY_BLOCK:
        if X_FORMAT != PLAIN:
            scaled = scaled * tl.load(x_scale_ptr, mask=is_row, other=0.0)[:, None]
        if WEIGHT_FORMAT != PLAIN:
            scaled = scaled * tl.load(weight_scale_ptr, mask=is_channel, other=0.0)[None, :]
    return scaled
