"""From one form of a weight to another, and how far the result is from what it was."""

import torch

from forebay_kernels.cpu import quantization as library
from forebay_kernels.cpu.library import best_variant
from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.int4_weights import Int4Weight, pack_int4
from forebay_kernels.int8_weights import Int8Weight, quantize_int8
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_kernels.reference.quantization import SMALLEST_MAGNITUDE, quantize_rows
from forebay_server.layers.weight_forms import (
    LinearWeight,
    WeightFormat,
    concatenate,
    dequantize,
    select_rows,
    weight_shape,
)

_CHUNK_ELEMENTS = 1 << 18
"""Rows are converted in parts of about this size: they stay in the processor's cache, and memory stays flat."""
_SAMPLED_ROWS = 16
_INT4_FACTORS = tuple((1 - 0.04 * step) / -8 for step in range(9))
"""Scales that are tried for each group of int4, as shares of its number of the largest magnitude: the largest becomes
-8, the side that reaches further, with the first of them, which clips nothing."""


def format_of(weight: LinearWeight) -> WeightFormat:
    """The format that a form has."""
    if isinstance(weight, torch.Tensor):
        return WeightFormat("plain")
    if isinstance(weight, Int8Weight):
        return WeightFormat("int8", 0 if weight.scales.shape[1] == 1 else weight.group_size)
    if isinstance(weight, Fp8Weight):
        return WeightFormat("fp8", 128 if weight.is_by_block else 0)
    return WeightFormat(
        "int4",
        weight.group_size,
        scale_bytes=weight.scales.element_size(),
        has_zeros=weight.zeros is not None,
        has_mins=weight.mins is not None,
        is_permuted=weight.permutation is not None,
    )


def convert(weight: LinearWeight, target: WeightFormat, dtype: torch.dtype) -> LinearWeight:
    """The weight in the wanted form; the same object where it has it.

    Args:
        weight: in any form.
        target: the wanted form.
        dtype: of plain weights.
    """
    there = format_of(weight)
    if (there.kind, there.group_size) == (target.kind, target.group_size) and target.kind != "plain":
        return weight
    if target.kind == "plain":
        return weight.to(dtype) if isinstance(weight, torch.Tensor) else _dequantized(weight, dtype)
    variant = best_variant()
    if variant is not None and not isinstance(weight, Fp8Weight):
        group_size = target.group_size or None
        if target.kind == "int8" and library.can_quantize(weight, group_size):
            return _with_half_scales(library.quantize_int8(weight, group_size, variant=variant))
        if target.kind == "int4" and library.can_quantize(weight, group_size):
            return library.quantize_int4(weight, target.group_size, _INT4_FACTORS, variant=variant)
    parts = [_quantize(dequantize(select_rows(weight, rows)), target) for rows in _row_chunks(weight)]
    joined = concatenate(parts)
    if joined is None:
        raise ValueError("parts of one weight got different forms")
    return joined


def _dequantized(weight: LinearWeight, dtype: torch.dtype) -> torch.Tensor:
    output = torch.empty(weight_shape(weight), dtype=dtype)
    for rows in _row_chunks(weight):
        output[rows] = dequantize(select_rows(weight, rows)).to(dtype)
    return output


def _row_chunks(weight: LinearWeight) -> list[slice]:
    """Rows in parts that cut through no block of scales."""
    rows, columns = weight_shape(weight)
    step = max(1, _CHUNK_ELEMENTS // columns)
    if isinstance(weight, Fp8Weight) and weight.is_by_block:
        step = max(1, step // SCALE_BLOCK) * SCALE_BLOCK
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _with_half_scales(weight: Int8Weight) -> Int8Weight:
    """The same numbers with scales of groups that float16 can hold, as the C++ step holds them."""
    return weight if weight.scales.shape[1] == 1 else Int8Weight(weight.values, weight.scales.half().float())


def _quantize(weight: torch.Tensor, target: WeightFormat) -> LinearWeight:
    if target.kind == "int8":
        return _with_half_scales(quantize_int8(weight, target.group_size or None))
    if target.kind == "int4":
        return quantize_int4(weight, target.group_size)
    return quantize_fp8(weight)


def quantize_int4(weight: torch.Tensor, group_size: int) -> Int4Weight:
    """Quantize symmetrically to -8..7, each group with the scale of the least squared error among a few.

    Args:
        weight: [out_features, in_features], any float dtype.
        group_size: in_features that share a scale.
    """
    groups = weight.float().view(weight.shape[0], -1, group_size)  # [out_features, num_groups, group_size]
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True)).squeeze(2)
    best_scales = torch.zeros_like(extreme)
    best_error = torch.full_like(extreme, torch.inf)
    for factor in _INT4_FACTORS:
        scales = (extreme * factor).half().float()  # what float16 can hold
        numbers = _int4_numbers(groups, scales)
        error = (numbers * scales.unsqueeze(2) - groups).square().sum(2)
        better = error < best_error
        best_scales = torch.where(better, scales, best_scales)
        best_error = torch.where(better, error, best_error)
    packed = pack_int4((_int4_numbers(groups, best_scales) + 8).flatten(1).to(torch.uint8), group_size)
    return Int4Weight(packed, best_scales.half(), None, None)


def _int4_numbers(groups: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    inverse = torch.where(scales.abs() > SMALLEST_MAGNITUDE, 1 / scales, 0.0)
    return (groups * inverse.unsqueeze(2)).round().clamp(-8, 7)


def quantize_fp8(weight: torch.Tensor) -> Fp8Weight:
    """Quantize to float8_e4m3fn with one scale an output channel; [out_features, in_features], any float dtype."""
    values, scales = quantize_rows(weight, torch.float8_e4m3fn)
    return Fp8Weight(values, scales)


def squared_error(before: LinearWeight, after: LinearWeight) -> tuple[float, float]:
    """Squared difference and squared size of a sample of rows: the root of their quotient is the relative error."""
    original, result = _sample(before), _sample(after)
    return float((original - result).square().sum()), float(original.square().sum())


def _sample(weight: LinearWeight) -> torch.Tensor:
    """Some rows, evenly spread; all where rows share scales."""
    if isinstance(weight, Fp8Weight) and weight.is_by_block:
        return weight.dequantize()[_sampled_rows(weight)]
    return dequantize(select_rows(weight, _sampled_rows(weight)))


def _sampled_rows(weight: LinearWeight) -> torch.Tensor:
    rows = weight_shape(weight)[0]
    return torch.arange(0, rows, max(1, rows // _SAMPLED_ROWS))
