"""Quantizes weights in the C++ library: the numbers of `quantize_int8` and its like, many times faster than torch."""

import ctypes
from collections.abc import Sequence

import torch

from forebay_kernels.cpu.library import load_library
from forebay_kernels.cpu.structures import StoredMatrixStructure
from forebay_kernels.int4_weights import Int4Weight, chunk_of
from forebay_kernels.int8_weights import Int8Weight

StoredWeight = torch.Tensor | Int8Weight | Int4Weight

_FLOAT_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_INT8_KIND, _INT4_KIND = 3, 4
_LANES = 16
"""The library takes so many numbers at once."""


def can_quantize(weight: StoredWeight, group_size: int | None) -> bool:
    """Whether the library can: it knows no reordered inputs, and everything comes in whole lanes.

    Args:
        weight: [out_features, in_features].
        group_size: numbers that shall share a scale; None: a row.
    """
    if isinstance(weight, torch.Tensor):
        columns, stored_group = weight.shape[1], _LANES
        known = weight.dtype in _FLOAT_KINDS and weight.device.type == "cpu"
    elif isinstance(weight, Int8Weight):
        columns, stored_group = weight.values.shape[1], weight.group_size
        known = weight.values.device.type == "cpu"
    else:
        columns, stored_group = weight.packed.shape[1] * 2, weight.group_size
        known = weight.packed.device.type == "cpu" and weight.permutation is None
    group_size = columns if group_size is None else group_size
    return known and not (columns % group_size or group_size % _LANES or stored_group % _LANES)


def quantize_int8(weight: StoredWeight, group_size: int | None = None, *, variant: str) -> Int8Weight:
    """What `int8_weights.quantize_int8` makes of the weight's meaning, bit for bit.

    Args:
        weight: one for which `can_quantize`.
        group_size: numbers that share a scale; None: a row.
        variant: of the library.

    Raises:
        MemoryError: there is no memory for a row.
    """
    stored, _alive = _stored(weight)
    group_size = stored.columns if group_size is None else group_size
    values = torch.empty(stored.rows, stored.columns, dtype=torch.int8)
    scales = torch.empty(stored.rows, stored.columns // group_size)
    failed = load_library(variant).forebay_quantize_int8(
        ctypes.byref(stored), group_size, values.data_ptr(), scales.data_ptr()
    )
    if failed:
        raise MemoryError("no memory for a row")
    return Int8Weight(values, scales)


def quantize_int4(weight: StoredWeight, group_size: int, factors: Sequence[float], *, variant: str) -> Int4Weight:
    """Quantize symmetrically to -8..7; each group takes the scale of the least squared error.

    Args:
        weight: one for which `can_quantize`.
        group_size: numbers that share a scale: 32, 64 or a multiple of 128.
        factors: the scales that are tried, as shares of the group's number of the largest magnitude.
        variant: of the library.

    Raises:
        MemoryError: there is no memory for a row.
    """
    stored, _alive = _stored(weight)
    packed = torch.empty(stored.rows, stored.columns // 2, dtype=torch.uint8)
    scales = torch.empty(stored.rows, stored.columns // group_size, dtype=torch.float16)
    tried = torch.tensor(factors, dtype=torch.float32)
    failed = load_library(variant).forebay_quantize_int4(
        *(ctypes.byref(stored), group_size, chunk_of(group_size)),
        *(tried.data_ptr(), len(tried), packed.data_ptr(), scales.data_ptr()),
    )
    if failed:
        raise MemoryError("no memory for a row")
    return Int4Weight(packed, scales, None, None)


def _stored(weight: StoredWeight) -> tuple[StoredMatrixStructure, list[torch.Tensor]]:
    """Pointers, and the tensors that must outlive them."""
    if isinstance(weight, torch.Tensor):
        numbers = weight.contiguous()
        rows, columns = numbers.shape
        return StoredMatrixStructure(
            _FLOAT_KINDS[numbers.dtype], rows, columns, columns, columns, 0, numbers.data_ptr()
        ), [numbers]
    if isinstance(weight, Int8Weight):
        kind, numbers, columns, chunk = _INT8_KIND, weight.values.contiguous(), weight.values.shape[1], 0
        zeros = mins = None
    else:
        kind, numbers, columns = _INT4_KIND, weight.packed.contiguous(), weight.packed.shape[1] * 2
        chunk = chunk_of(weight.group_size)
        zeros, mins = _zeros(weight), weight.mins
    fields = [None if part is None else part.float().contiguous() for part in (weight.scales, zeros, mins)]
    pointers = [None if part is None else part.data_ptr() for part in fields]
    stored = StoredMatrixStructure(
        kind, len(numbers), columns, weight.group_size, chunk, 0, numbers.data_ptr(), *pointers
    )
    return stored, [numbers, *(part for part in fields if part is not None)]


def _zeros(weight: Int4Weight) -> torch.Tensor | None:
    if weight.mins is not None:
        return None
    return torch.full_like(weight.scales, 8.0) if weight.zeros is None else weight.zeros
