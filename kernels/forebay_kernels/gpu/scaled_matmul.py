"""Matrix products with weights of eight bits in Triton: int8 by int8, float8 by float8, and 16-bit x by either.

For few tokens bound by memory, the weight is read once; for many bound by matrix products. One program computes a tile
of BLOCK_M tokens by BLOCK_N channels over all of in_features.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import as_bytes
from forebay_kernels.gpu.launch import Launch
from forebay_kernels.gpu.matmul_tiles import add_and_store, tiles_of
from forebay_kernels.gpu.scaled_products import bytes_per_k, product_constants, scaled_products
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_kernels.targets import Target, target_of

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
    # 64 bits to the tile, 32 within it.
    x_tile_ptr = x_ptr + first_m.to(tl.int64) * stride_x_token
    x_tile_ptr += tl.arange(0, BLOCK_M)[:, None] * stride_x_token + offs_k[None, :]
    weight_tile_ptr = weight_ptr + first_n.to(tl.int64) * stride_weight_out
    weight_tile_ptr += tl.arange(0, BLOCK_N)[None, :] * stride_weight_out + offs_k[:, None]
    if SCALES_BY_BLOCK:
        num_k_blocks = tl.cdiv(in_features, BLOCK_K)
        x_scale_ptr = x_scales_ptr + offs_m * num_k_blocks
        # A block of scales has BLOCK_K channels, as it has BLOCK_K elements of each.
        weight_scale_ptr = weight_scales_ptr + offs_n // BLOCK_K * num_k_blocks
    else:
        x_scale_ptr = x_scales_ptr + offs_m
        weight_scale_ptr = weight_scales_ptr + (offs_n * 0 if ONE_WEIGHT_SCALE else offs_n)
    scaled = scaled_products(
        x_tile_ptr, weight_tile_ptr, x_scale_ptr, weight_scale_ptr, offs_m < num_tokens, offs_n < out_features,
        in_features, MODE, X_FORMAT, WEIGHT_FORMAT, DTYPE, DOT, SCALES_BY_BLOCK, IS_EVEN, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
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
    constants = product_constants(x, weight, target)
    scales_by_block = weight_scales.dim() == 2
    tiles = tiles_of(
        num_tokens,
        step_bytes=bytes_per_k(x, constants) * _BLOCK_K,
        target=target,
        max_block_n=64 if scales_by_block else 128,
    )
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
            **constants,
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
