"""Checks of the arguments of matrix products with quantized weights."""

import torch

from forebay_kernels.checks.tensors import FLOAT_DTYPES, check_device, check_dtype, check_floats, check_like, check_rows
from forebay_kernels.int4_weights import chunk_of
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_kernels.reference.quantization import LARGEST


def check_w8a8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `w8a8_matmul` can take these."""
    num_tokens, out_features = _check_operands(x, weight, torch.int8)
    check_like("x_scales", x_scales, (num_tokens,), torch.float32, x)
    check_like("weight_scales", weight_scales, (out_features,), torch.float32, x)
    _check_epilogue(num_tokens, out_features, dtype, bias, residual, x)


def check_fp8_matmul(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `fp8_matmul` can take these."""
    num_tokens, out_features = _check_operands(x, weight, torch.float8_e4m3fn)
    in_blocks, out_blocks = (-(-size // SCALE_BLOCK) for size in (x.shape[1], out_features))
    if weight_scales.dim() == 1:
        check_like("x_scales", x_scales, (num_tokens,), torch.float32, x)
        size = 1 if weight_scales.shape[0] == 1 else out_features
        check_like("weight_scales", weight_scales, (size,), torch.float32, x)
    else:
        check_like("x_scales", x_scales, (num_tokens, in_blocks), torch.float32, x)
        check_like("weight_scales", weight_scales, (out_blocks, in_blocks), torch.float32, x)
    _check_epilogue(num_tokens, out_features, dtype, bias, residual, x)


def check_w8a16_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `w8a16_matmul` can take these."""
    check_floats("x", x, "[num_tokens, in_features]", num_dims=2)
    if weight.dtype not in LARGEST:
        raise ValueError(f"weight: expected torch.int8 or torch.float8_e4m3fn, got {weight.dtype}")
    out_features = _check_weight(x, weight)
    check_like("weight_scales", weight_scales, (out_features,), torch.float32, x)
    _check_epilogue(x.shape[0], out_features, x.dtype, bias, residual, x)


def _check_operands(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> tuple[int, int]:
    """Returns (num_tokens, out_features)."""
    if x.dim() != 2:
        raise ValueError(f"x: expected shape [num_tokens, in_features], got {list(x.shape)}")
    check_dtype("x", x, dtype)
    check_rows("x", x)
    check_dtype("weight", weight, dtype)
    return x.shape[0], _check_weight(x, weight)


def _check_weight(x: torch.Tensor, weight: torch.Tensor) -> int:
    """Returns out_features."""
    if weight.dim() != 2 or weight.shape[1] != x.shape[1] or 0 in weight.shape:
        raise ValueError(f"weight: expected shape [out_features, {x.shape[1]}], got {list(weight.shape)}")
    check_device("weight", weight, "x", x)
    check_rows("weight", weight)
    return weight.shape[0]


def _check_epilogue(
    num_tokens: int,
    out_features: int,
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    x: torch.Tensor,
) -> None:
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"dtype: expected float32, float16 or bfloat16, got {dtype}")
    if bias is not None:
        check_like("bias", bias, (out_features,), dtype, x)
    if residual is not None:
        check_like("residual", residual, (num_tokens, out_features), dtype, x)


def check_w4a16_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    permutation: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `w4a16_matmul` can take these. What the permutation holds is not looked at."""
    check_floats("x", x, "[num_tokens, in_features]", num_dims=2)
    num_tokens, in_features = x.shape
    if packed.dim() != 2 or packed.shape[1] * 2 != in_features or 0 in packed.shape:
        raise ValueError(f"packed: expected shape [out_features, {in_features} / 2], got {list(packed.shape)}")
    out_features = packed.shape[0]
    check_like("packed", packed, (out_features, in_features // 2), torch.uint8, x)
    if scales.dim() != 2 or scales.shape[1] == 0 or in_features % scales.shape[1]:
        raise ValueError(f"scales: expected shape [{out_features}, num_groups], got {list(scales.shape)}")
    check_like("scales", scales, (out_features, scales.shape[1]), x.dtype, x)
    chunk_of(in_features // scales.shape[1])
    if zeros is not None:
        check_like("zeros", zeros, tuple(scales.shape), torch.uint8, x)
    if permutation is not None:
        check_like("permutation", permutation, (in_features,), torch.int32, x)
    _check_epilogue(num_tokens, out_features, x.dtype, bias, residual, x)
