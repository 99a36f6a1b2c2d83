"""Matrix products with weights of eight bits in Triton: int8 by int8, float8 by float8, and 16-bit x by either.

For few tokens bound by memory, the weight is read once; for many bound by matrix products. One program computes a tile
of BLOCK_M tokens by BLOCK_N channels over all of in_features.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import PLAIN, as_bytes, dequantize, format_of
from forebay_kernels.gpu.launch import Launch, dot_type
from forebay_kernels.gpu.matmul_tiles import add_and_store, tiles_of
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_kernels.targets import Target, target_of

# How operands are multiplied: as integers, as float8 by hardware, or converted to floats of 16 bits before.
_INTEGERS = tl.constexpr(0)
_FLOAT8 = tl.constexpr(1)
_CONVERTED = tl.constexpr(2)

# Elements of in_features that one step takes: as many as a block of scales has. 128 bytes of int8 or float8 fill a line
# of the cache. The same for every number of tokens, so that sums are cut at the same places.
_BLOCK_K = SCALE_BLOCK


@triton.jit  # type: ignore[untyped-decorator]
def _scaled_matmul_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, out_features], contiguous
    x_ptr,  # [num_tokens, in_features]
    x_scales_ptr,  # [num_tokens] or [num_tokens, num_k_blocks], float32; unused where x is PLAIN
    weight_ptr,  # [out_features, in_features]
    weight_scales_ptr,  # [1], [out_features] or [num_n_blocks, num_k_blocks], float32
    bias_ptr,  # [out_features]; unused unless HAS_BIAS
    residual_ptr,  # [num_tokens, out_features], contiguous; unused unless HAS_RESIDUAL
    stride_x_token,
    stride_weight_out,
    num_tokens,
    out_features,
    in_features,
    MODE: tl.constexpr,
    X_FORMAT: tl.constexpr,
    WEIGHT_FORMAT: tl.constexpr,
    DTYPE: tl.constexpr,
    DOT: tl.constexpr,
    SCALES_BY_BLOCK: tl.constexpr,
    ONE_WEIGHT_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute one tile. Neighbouring programs have the same channels, whose weights the second finds in the cache."""
    first_m = tl.program_id(0) * BLOCK_M
    first_n = tl.program_id(1) * BLOCK_N
    offs_m = first_m + tl.arange(0, BLOCK_M)
    offs_n = first_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    is_token = offs_m < num_tokens
    is_channel = offs_n < out_features
    # 64 bits to the tile, 32 within it.
    x_tile_ptr = x_ptr + first_m.to(tl.int64) * stride_x_token
    x_tile_ptr += tl.arange(0, BLOCK_M)[:, None] * stride_x_token + offs_k[None, :]
    weight_tile_ptr = weight_ptr + first_n.to(tl.int64) * stride_weight_out
    weight_tile_ptr += tl.arange(0, BLOCK_N)[None, :] * stride_weight_out + offs_k[:, None]
    num_k_blocks = tl.cdiv(in_features, BLOCK_K)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if MODE == _INTEGERS else tl.float32)
    for block in range(0, num_k_blocks):
        x_mask = is_token[:, None]
        weight_mask = is_channel[None, :]
        if not IS_EVEN:
            in_row = offs_k < in_features - block * BLOCK_K
            x_mask = x_mask & in_row[None, :]
            weight_mask = weight_mask & in_row[:, None]
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
                x_scale = tl.load(x_scales_ptr + offs_m * num_k_blocks + block, mask=is_token, other=0.0)
                weight_scale = tl.load(
                    weight_scales_ptr + offs_n // BLOCK_K * num_k_blocks + block, mask=is_channel, other=0.0
                )
                acc += tl.dot(x, weight, input_precision="ieee") * x_scale[:, None] * weight_scale[None, :]
            else:
                acc = tl.dot(x, weight, acc, input_precision="ieee")

    scaled = acc.to(tl.float32)
    if not SCALES_BY_BLOCK:
        if X_FORMAT != PLAIN:
            scaled = scaled * tl.load(x_scales_ptr + offs_m, mask=is_token, other=0.0)[:, None]
        if ONE_WEIGHT_SCALE:
            scaled = scaled * tl.load(weight_scales_ptr)
        else:
            scaled = scaled * tl.load(weight_scales_ptr + offs_n, mask=is_channel, other=0.0)[None, :]
    add_and_store(
        output_ptr, bias_ptr, residual_ptr, scaled, offs_m, offs_n, num_tokens, out_features, HAS_BIAS, HAS_RESIDUAL
    )


def w8a8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch the kernel; arguments and result as `forebay_kernels.w8a8_matmul`."""
    output = torch.empty((x.shape[0], weight.shape[0]), dtype=dtype, device=x.device)
    target = target_of(x.device)
    scaled_matmul_launch(output, x, x_scales, weight, weight_scales, bias, residual, target=target).run()
    return output


def fp8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch the kernel; arguments and result as `forebay_kernels.fp8_matmul`."""
    output = torch.empty((x.shape[0], weight.shape[0]), dtype=dtype, device=x.device)
    target = target_of(x.device)
    scaled_matmul_launch(output, x, x_scales, weight, weight_scales, bias, residual, target=target).run()
    return output


def w8a16_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch the kernel; arguments and result as `forebay_kernels.w8a16_matmul`."""
    output = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    target = target_of(x.device)
    scaled_matmul_launch(output, x, None, weight, weight_scales, bias, residual, target=target).run()
    return output


def scaled_matmul_launch(
    output: torch.Tensor,
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    target: Target,
) -> Launch:
    """Return the launch of a product that writes to output, contiguous. Pure. x_scales is None where x is a float."""
    num_tokens, in_features = x.shape
    out_features = weight.shape[0]
    if x.dtype == torch.int8:
        mode, converted = _INTEGERS, torch.float16
    elif x.dtype == torch.float8_e4m3fn:
        mode, converted = _FLOAT8 if target.multiplies_fp8 else _CONVERTED, torch.float16
    else:
        mode, converted = _CONVERTED, x.dtype
    bytes_per_k = 2 * converted.itemsize if mode is _CONVERTED else 2
    scales_by_block = weight_scales.dim() == 2
    max_block_n = 64 if scales_by_block else 128
    tiles = tiles_of(num_tokens, bytes_per_k=bytes_per_k, target=target, max_block_n=max_block_n)
    return Launch(
        kernel=_scaled_matmul_kernel,
        grid=(triton.cdiv(num_tokens, tiles.block_m), triton.cdiv(out_features, tiles.block_n)),
        arguments={
            "output_ptr": output,
            "x_ptr": as_bytes(x),
            # A tensor stands where none is needed: Triton's arguments have one type each.
            "x_scales_ptr": weight_scales if x_scales is None else x_scales,
            "weight_ptr": as_bytes(weight),
            "weight_scales_ptr": weight_scales,
            "bias_ptr": output if bias is None else bias,
            "residual_ptr": output if residual is None else residual,
            "stride_x_token": x.stride(0),
            "stride_weight_out": weight.stride(0),
            "num_tokens": num_tokens,
            "out_features": out_features,
            "in_features": in_features,
            "MODE": mode.value,
            "X_FORMAT": format_of(x.dtype),
            "WEIGHT_FORMAT": format_of(weight.dtype),
            "DTYPE": {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[converted],
            "DOT": dot_type(converted),
            "SCALES_BY_BLOCK": scales_by_block,
            "ONE_WEIGHT_SCALE": weight_scales.shape[0] == 1,
            "HAS_BIAS": bias is not None,
            "HAS_RESIDUAL": residual is not None,
            "IS_EVEN": in_features % _BLOCK_K == 0,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "BLOCK_K": _BLOCK_K,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
