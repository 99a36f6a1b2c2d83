"""Weights as the C++ library reads them: panels of 32 outputs, in which the same few inputs of all outputs adjoin."""

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import torch

from forebay_kernels.cpu.arena import Arena
from forebay_kernels.cpu.library import VARIANTS, best_variant, load_library
from forebay_kernels.cpu.structures import UnpackedStructure, WeightStructure
from forebay_kernels.int4_weights import Int4Weight, chunk_of, pack_int4, unpack_int4
from forebay_kernels.int8_weights import Int8Weight, quantize_int8
from forebay_kernels.reference.cpu import INPUT_GROUP

PANEL = 32
"""Outputs of a panel."""

MOST_GROUP = 64
"""Inputs that share a scale at most; outputs and inputs are padded with zeros to multiples of it."""

AnyWeight = Int8Weight | Int4Weight | torch.Tensor
"""A weight, [out_features, in_features]; a tensor in any float dtype is computed with in bfloat16."""


class WeightKind(IntEnum):
    """How the numbers of a packed weight are stored (`WeightKind` of `source/interface.h`)."""

    INT8_CHANNELS = 0
    INT8_GROUPS = 1
    INT4_GROUPS = 2
    BF16 = 3


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in panels; `num_outputs` and `num_inputs` are padded."""

    kind: WeightKind
    group: int
    """Inputs that share a scale of the activations, and of the weight where it has groups: 32 or 64."""
    num_outputs: int
    num_inputs: int
    in_features: int
    """What was not padded."""
    data: torch.Tensor
    """uint8."""
    channel_scales: torch.Tensor | None
    """[num_outputs], float32."""
    scales: torch.Tensor | None
    """[panels, groups, PANEL], float16."""
    mins: torch.Tensor | None
    """As scales."""
    bias: torch.Tensor | None
    """[num_outputs], float32."""

    def structure(self) -> WeightStructure:
        """Pointers into this object, which must outlive them."""
        return WeightStructure(
            self.kind,
            self.group,
            self.num_outputs,
            self.num_inputs,
            *(_pointer(tensor) for tensor in (self.data, self.channel_scales, self.scales, self.mins, self.bias)),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes that are read to multiply with it."""
        parts = (self.data, self.channel_scales, self.scales, self.mins, self.bias)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)


def pack(
    weight: AnyWeight, bias: torch.Tensor | None = None, *, num_parts: int = 1, arena: Arena | None = None
) -> PackedWeight:
    """Pack a weight.

    Groups that the library does not know are changed into ones that it does: whole multiples of 64 are split, without
    loss; other sizes, and weights with a permutation of their inputs, are quantized again to eight bits.

    Args:
        weight: [out_features, in_features].
        bias: [out_features], any float dtype.
        num_parts: so many weights of equal size on top of one another, whose panels are to take turns (gate, up).
        arena: where the packed numbers go; None: memory of their own.

    Raises:
        OSError: the library was not built.
        MemoryError: there is no memory for a row.
    """
    weight = _known(weight)
    arena = arena or Arena()
    out_features, in_features = _shape(weight)
    rows = _panel_rows(out_features, num_parts)
    num_inputs = -(-in_features // MOST_GROUP) * MOST_GROUP
    channel_scales = scales = mins = None
    group = MOST_GROUP
    if isinstance(weight, Int8Weight):
        kind, numbers, chunk, bits = WeightKind.INT8_CHANNELS, weight.values, 0, 8
        if weight.scales.shape[1] == 1:
            group = INPUT_GROUP
            channel_scales = arena.copy(_take(weight.scales.float(), rows, 1).flatten())
        else:
            kind, group = WeightKind.INT8_GROUPS, min(MOST_GROUP, weight.group_size)
            scales = arena.copy(_group_panels(weight.scales, rows, num_inputs // group))
    elif isinstance(weight, Int4Weight):
        kind, group = WeightKind.INT4_GROUPS, min(MOST_GROUP, weight.group_size)
        numbers, chunk, bits = weight.packed, chunk_of(weight.group_size), 4
        scales = arena.copy(_group_panels(weight.scales, rows, num_inputs // group))
        if weight.mins is not None:
            mins = arena.copy(_group_panels(weight.mins, rows, num_inputs // group))
        elif weight.zeros is not None:
            shifts = -weight.zeros.float() * weight.scales.float()
            mins = arena.copy(_group_panels(shifts, rows, num_inputs // group))
    else:
        kind, numbers, chunk, bits = WeightKind.BF16, weight.bfloat16(), 0, 16
    data = arena.empty(len(rows) * num_inputs * bits // 8)
    _pack_numbers(kind, numbers, (out_features, in_features), chunk, rows, num_inputs, data)
    return PackedWeight(
        kind=kind,
        group=group,
        num_outputs=len(rows),
        num_inputs=num_inputs,
        in_features=in_features,
        data=data,
        channel_scales=channel_scales,
        scales=scales,
        mins=mins,
        bias=None if bias is None else arena.copy(_take(bias.float().unsqueeze(1), rows, 1).flatten()),
    )


def _known(weight: AnyWeight) -> AnyWeight:
    """The same weight with groups that the library knows."""
    if isinstance(weight, torch.Tensor):
        return weight
    if isinstance(weight, Int4Weight) and weight.permutation is not None:
        return quantize_int8(weight.dequantize())
    group_size, num_groups = weight.group_size, weight.scales.shape[1]
    if isinstance(weight, Int8Weight) and num_groups == 1:
        return weight
    if group_size in (32, 64):
        return weight
    if group_size % MOST_GROUP:
        return quantize_int8(weight.dequantize())
    repeats = group_size // MOST_GROUP
    scales = weight.scales.repeat_interleave(repeats, dim=1)
    if isinstance(weight, Int8Weight):
        return Int8Weight(weight.values, scales)
    zeros = None if weight.zeros is None else weight.zeros.repeat_interleave(repeats, dim=1)
    mins = None if weight.mins is None else weight.mins.repeat_interleave(repeats, dim=1)
    # Chunks of 64 and of 128 hold their numbers in another order.
    numbers = unpack_int4(weight.packed, group_size)
    return Int4Weight(pack_int4(numbers, MOST_GROUP), scales, zeros, None, mins)


def _shape(weight: AnyWeight) -> tuple[int, int]:
    if isinstance(weight, Int8Weight):
        return weight.values.shape[0], weight.values.shape[1]
    if isinstance(weight, Int4Weight):
        return weight.packed.shape[0], weight.packed.shape[1] * 2
    return weight.shape[0], weight.shape[1]


def _panel_rows(out_features: int, num_parts: int) -> torch.Tensor:
    """[num_outputs]: which row of the weight each output is; out_features: padding."""
    size = out_features // num_parts
    padded = -(-size // MOST_GROUP) * MOST_GROUP
    rows = torch.arange(padded).expand(num_parts, -1)
    rows = torch.where(rows < size, rows + torch.arange(num_parts).unsqueeze(1) * size, out_features).contiguous()
    return rows.view(num_parts, -1, PANEL).transpose(0, 1).flatten()


def _take(matrix: torch.Tensor, rows: torch.Tensor, num_columns: int) -> torch.Tensor:
    """Rows of [out_features, columns], padded with zeros to [len(rows), num_columns]."""
    out_features, columns = matrix.shape
    if num_columns > columns or int(rows.max()) == out_features:
        matrix = torch.nn.functional.pad(matrix, (0, num_columns - columns, 0, 1))
    elif torch.equal(rows, torch.arange(out_features)):
        return matrix.contiguous()
    return matrix.index_select(0, rows)


def _pack_numbers(
    kind: WeightKind,
    numbers: torch.Tensor,
    shape: tuple[int, int],
    chunk: int,
    rows: torch.Tensor,
    num_inputs: int,
    data: torch.Tensor,
) -> None:
    """Let the library write the panels; every variant has the same function for it."""
    numbers, rows = numbers.contiguous(), rows.int()
    structure = UnpackedStructure(kind, *shape, chunk, numbers.data_ptr())
    library = load_library(best_variant() or list(VARIANTS)[-1])
    if library.forebay_pack(ctypes.byref(structure), rows.data_ptr(), len(rows), num_inputs, data.data_ptr()):
        raise MemoryError("no memory for a row")


def _group_panels(values: torch.Tensor, rows: torch.Tensor, num_groups: int) -> torch.Tensor:
    """[out_features, groups] -> [panels, num_groups, PANEL], float16."""
    return _take(values.float(), rows, num_groups).half().view(-1, PANEL, num_groups).transpose(1, 2).contiguous()


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
