"""The forms in which a linear layer's weight lies in memory, and what can be done with each: a small, closed family.

A form is a plain tensor or one of the kernels' quantized weights; all mean a matrix [out_features, in_features].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.int4_weights import Int4Weight, chunk_of, group_of, pack_int4, unpack_int4
from forebay_kernels.int8_weights import Int8Weight
from forebay_kernels.reference.matmul import SCALE_BLOCK

QuantizedWeight = Int8Weight | Int4Weight | Fp8Weight
LinearWeight = torch.Tensor | QuantizedWeight

FormatKind = Literal["plain", "int8", "int4", "fp8"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """What kind of form a weight has, without its numbers; enough to know its bytes."""

    kind: FormatKind
    group_size: int = 0
    """in_features that share a scale (int8, int4); 0: a whole row. For fp8 128: blocks of 128 by 128."""
    scale_bytes: int = 4
    has_zeros: bool = False
    has_mins: bool = False
    is_permuted: bool = False
    quantizes_input: bool = False
    """Whether the layer's input is quantized too (W8A8): by token, while running."""

    def num_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes in memory, scales included; dtype is that of plain weights."""
        if self.kind == "plain":
            return torch.Size(shape).numel() * dtype.itemsize
        rows, columns = shape
        groups = -(-columns // self.group_size) if self.group_size else 1
        if self.kind == "fp8":
            return rows * columns + 4 * (-(-rows // SCALE_BLOCK) * groups if self.group_size else rows)
        if self.kind == "int8":
            return rows * (columns + self.scale_bytes * groups)
        of_group = self.scale_bytes * (2 if self.has_mins else 1) + (1 if self.has_zeros else 0)
        return rows * (columns // 2 + of_group * groups) + (4 * columns if self.is_permuted else 0)

    def __str__(self) -> str:
        """As logs show it: `int8`, `int4 by 32 with zeros`."""
        if self.kind == "plain":
            return "dtype"
        by = f" by {self.group_size}" if self.group_size else ""
        extras = " with zeros" if self.has_zeros or self.has_mins else ""
        order = ", reordered" if self.is_permuted else ""
        weight_only = "" if self.quantizes_input else ", weight only"
        return f"{self.kind}{by}{extras}{order}{weight_only}"


PLAIN = WeightFormat("plain")


def weight_shape(weight: LinearWeight) -> tuple[int, int]:
    """(out_features, in_features)."""
    if isinstance(weight, Int4Weight):
        return weight.packed.shape[0], weight.packed.shape[1] * 2
    values = weight if isinstance(weight, torch.Tensor) else weight.values
    return values.shape[0], values.shape[1]


def weight_tensors(weight: LinearWeight) -> list[torch.Tensor]:
    """The tensors that a form is made of."""
    if isinstance(weight, torch.Tensor):
        return [weight]
    parts = (getattr(weight, field.name) for field in fields(weight))
    return [part for part in parts if isinstance(part, torch.Tensor)]


def num_bytes(weight: LinearWeight) -> int:
    """Bytes in memory, scales included."""
    return sum(part.numel() * part.element_size() for part in weight_tensors(weight))


def dequantize(weight: LinearWeight) -> torch.Tensor:
    """[out_features, in_features], float32."""
    return weight.float() if isinstance(weight, torch.Tensor) else weight.dequantize()


def to_device(weight: LinearWeight, device: torch.device) -> LinearWeight:
    """The same numbers on another device."""
    if isinstance(weight, torch.Tensor):
        return weight.to(device)
    return _each(weight, lambda part: part.to(device))


def copied(weight: LinearWeight) -> LinearWeight:
    """The same numbers in memory of their own."""
    return weight.clone() if isinstance(weight, torch.Tensor) else _each(weight, torch.clone)


def _each(weight: QuantizedWeight, change: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedWeight:
    """The form with every tensor changed."""
    changed: dict[str, Any] = {}
    for name in (field.name for field in fields(weight)):
        part = getattr(weight, name)
        changed[name] = None if part is None else change(part)
    return type(weight)(**changed)


def select_rows(weight: LinearWeight, rows: torch.Tensor | slice) -> LinearWeight:
    """Some output features: what a rank of a column-parallel layer holds, or another order of them.

    Args:
        weight: any form.
        rows: a slice or indices; for block-scaled weights a slice that starts on a block of 128.

    Raises:
        ValueError: the rows cut through a block that shares one scale.
    """
    if isinstance(weight, torch.Tensor):
        return weight[rows]
    if isinstance(weight, Int8Weight):
        return Int8Weight(weight.values[rows], weight.scales[rows])
    if isinstance(weight, Int4Weight):
        return replace(
            weight,
            packed=weight.packed[rows],
            scales=weight.scales[rows],
            zeros=None if weight.zeros is None else weight.zeros[rows],
            mins=None if weight.mins is None else weight.mins[rows],
        )
    if not weight.is_by_block:
        return Fp8Weight(weight.values[rows], weight.scales[rows] if len(weight.scales) > 1 else weight.scales)
    if not isinstance(rows, slice):
        raise ValueError("rows of a block-scaled weight cannot be put in another order")
    start, stop, _ = rows.indices(weight.values.shape[0])
    if start % SCALE_BLOCK or (stop % SCALE_BLOCK and stop != weight.values.shape[0]):
        raise ValueError(f"rows {start} to {stop} cut through a block of {SCALE_BLOCK} that shares one scale")
    return Fp8Weight(weight.values[rows], weight.scales[start // SCALE_BLOCK : -(-stop // SCALE_BLOCK)].contiguous())


def select_columns(weight: LinearWeight, start: int, stop: int) -> LinearWeight:
    """Some input features: what a rank of a row-parallel layer holds.

    A weight whose groups are not in the order of its columns (act-order) has no groups of one size left after a cut: it
    comes back dequantized, as float32; the loader plans it as a plain weight.

    Raises:
        ValueError: the columns cut through a group or block that shares one scale.
    """
    columns = weight_shape(weight)[1]
    if (start, stop) == (0, columns):
        return weight
    if isinstance(weight, torch.Tensor):
        return weight[:, start:stop].contiguous()
    if isinstance(weight, Int4Weight) and weight.permutation is not None:
        return weight.dequantize()[:, start:stop].contiguous()
    group = _columns_that_share(weight)
    if group is not None and (start % group or (stop % group and stop != columns)):
        raise ValueError(f"columns {start} to {stop} cut through a group of {group} that shares one scale")
    if isinstance(weight, Int4Weight):
        return _int4_columns(weight, start, stop)
    values = weight.values[:, start:stop].contiguous()
    scales = weight.scales if group is None else weight.scales[:, start // group : -(-stop // group)].contiguous()
    return Int8Weight(values, scales) if isinstance(weight, Int8Weight) else Fp8Weight(values, scales)


def _int4_columns(weight: Int4Weight, start: int, stop: int) -> Int4Weight:
    """See `select_columns`; where a row has one scale, it becomes that of every group that the part may have."""
    numbers = unpack_int4(weight.packed, weight.group_size)[:, start:stop]
    is_whole_row = weight.scales.shape[1] == 1
    group_size = group_of(stop - start) if is_whole_row else weight.group_size
    groups = torch.arange(start, stop, group_size) // weight.group_size
    return Int4Weight(
        pack_int4(numbers.contiguous(), group_size),
        weight.scales[:, groups],
        None if weight.zeros is None else weight.zeros[:, groups],
        None,
        None if weight.mins is None else weight.mins[:, groups],
    )


def _columns_that_share(weight: QuantizedWeight) -> int | None:
    """How many columns share a scale; None: all."""
    if isinstance(weight, Fp8Weight):
        return SCALE_BLOCK if weight.is_by_block else None
    return None if weight.scales.shape[1] == 1 else weight.group_size


def concatenate(weights: Sequence[LinearWeight]) -> LinearWeight | None:
    """One weight with the rows of all, or None where they cannot be one: other forms, groups or orders."""
    first = weights[0]
    if isinstance(first, torch.Tensor):
        plain = [weight for weight in weights if isinstance(weight, torch.Tensor)]
        same = len(plain) == len(weights) and len({weight.dtype for weight in plain}) == 1
        return torch.cat(plain) if same else None
    if isinstance(first, Int8Weight):
        int8 = [weight for weight in weights if isinstance(weight, Int8Weight)]
        if len(int8) < len(weights) or len({weight.scales.shape[1] for weight in int8}) > 1:
            return None
        return Int8Weight(torch.cat([weight.values for weight in int8]), torch.cat([weight.scales for weight in int8]))
    if isinstance(first, Int4Weight):
        int4 = [weight for weight in weights if isinstance(weight, Int4Weight)]
        return _concatenate_int4(int4) if len(int4) == len(weights) else None
    fp8 = [weight for weight in weights if isinstance(weight, Fp8Weight)]
    return _concatenate_fp8(fp8) if len(fp8) == len(weights) else None


def _concatenate_int4(weights: Sequence[Int4Weight]) -> Int4Weight | None:
    first = weights[0]
    for weight in weights[1:]:
        alike = (
            weight.scales.shape[1] == first.scales.shape[1]
            and weight.scales.dtype == first.scales.dtype
            and (weight.mins is None) == (first.mins is None)
            and _same_order(weight.permutation, first.permutation)
        )
        if not alike:
            return None
    zeros: torch.Tensor | None = None
    if any(weight.zeros is not None for weight in weights):
        zeros = torch.cat(
            [
                torch.full_like(weight.scales, 8, dtype=torch.uint8) if weight.zeros is None else weight.zeros
                for weight in weights
            ]
        )
    return Int4Weight(
        torch.cat([weight.packed for weight in weights]),
        torch.cat([weight.scales for weight in weights]),
        zeros,
        first.permutation,
        None if first.mins is None else torch.cat([weight.mins for weight in weights if weight.mins is not None]),
    )


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _concatenate_fp8(weights: Sequence[Fp8Weight]) -> Fp8Weight | None:
    if len({weight.is_by_block for weight in weights}) > 1:
        return None
    if weights[0].is_by_block and any(weight.values.shape[0] % SCALE_BLOCK for weight in weights[:-1]):
        return None
    scales = [
        weight.scales if weight.is_by_block else weight.scales.expand(weight.values.shape[0]) for weight in weights
    ]
    return Fp8Weight(torch.cat([weight.values for weight in weights]), torch.cat(scales))


def can_be_int4(in_features: int, group_size: int) -> bool:
    """Whether rows of in_features can be cut into groups of this size."""
    try:
        chunk_of(group_size)
    except ValueError:
        return False
    return in_features % group_size == 0
