"""Weights of four bits: the one layout that `w4a16_matmul` reads, and how GPTQ, AWQ and compressed-tensors become it.

A weight, [out_features, in_features], is cut into chunks of 128 in_features (or a group, if that is smaller). Byte j of
a chunk holds element j in its low half and element j + chunk / 2 in its high half: a tile of bytes is two tiles of
numbers, without any number changing its place in the GPU's registers.
"""

from dataclasses import dataclass

import torch

_MAX_CHUNK = 128
# Where AWQ puts the eight numbers of a word: the number at bit 4 * i is column _AWQ_ORDER[i].
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """The arguments of `w4a16_matmul` that describe a weight: number k of a row means (number - zero) * scale.

    Where there are mins, which `w4a16_matmul` does not know, it means number * scale + min.
    """

    packed: torch.Tensor
    """[out_features, in_features / 2], uint8."""
    scales: torch.Tensor
    """[out_features, num_groups], a float dtype."""
    zeros: torch.Tensor | None
    """[out_features, num_groups], uint8; None: 8."""
    permutation: torch.Tensor | None
    """[in_features], int32: which element of x meets number k; None: element k."""
    mins: torch.Tensor | None = None
    """[out_features, num_groups], dtype of scales: GGUF's Q4_1, whose zero is no whole number; zeros are then None."""

    @property
    def group_size(self) -> int:
        """How many in_features share a scale."""
        return self.packed.shape[1] * 2 // self.scales.shape[1]

    def dequantize(self) -> torch.Tensor:
        """[out_features, in_features], float32, in the order of x: the permutation is undone."""
        numbers = unpack_int4(self.packed, self.group_size).view(*self.scales.shape, -1).float()
        if self.mins is not None:
            weight = numbers * self.scales.float().unsqueeze(2) + self.mins.float().unsqueeze(2)
        else:
            shifted = numbers - (8.0 if self.zeros is None else self.zeros.float().unsqueeze(2))
            weight = shifted * self.scales.float().unsqueeze(2)
        if self.permutation is None:
            return weight.flatten(1)
        ordered = torch.empty_like(weight.flatten(1))
        ordered[:, self.permutation.long()] = weight.flatten(1)
        return ordered


def chunk_of(group_size: int) -> int:
    """Return how many in_features are packed together.

    Raises:
        ValueError: group_size is neither 32, 64 nor a multiple of 128.
    """
    if not _is_chunked(group_size):
        raise ValueError(f"group_size: expected 32, 64 or a multiple of 128, got {group_size}")
    return min(group_size, _MAX_CHUNK)


def _is_chunked(group_size: int) -> bool:
    return group_size in (32, 64) or (group_size > 0 and group_size % _MAX_CHUNK == 0)


def group_of(group_size: int) -> int:
    """Return the group that a stored group becomes: itself, or a part of it, such as 64 for a row of 576.

    Raises:
        ValueError: group_size is no multiple of 32.
    """
    parts = (group_size,) if _is_chunked(group_size) else (64, 32)
    for part in parts:
        if group_size % part == 0:
            return part
    raise ValueError(f"group_size: expected a multiple of 32, got {group_size}")


def pack_int4(numbers: torch.Tensor, group_size: int) -> torch.Tensor:
    """Pack [out_features, in_features] of uint8, 0 to 15, to [out_features, in_features / 2]."""
    chunk = chunk_of(group_size)
    low, high = numbers.reshape(numbers.shape[0], -1, 2, chunk // 2).unbind(2)
    return (low | high << 4).flatten(1).contiguous()


def unpack_int4(packed: torch.Tensor, group_size: int) -> torch.Tensor:
    """Undo `pack_int4`."""
    chunk = chunk_of(group_size)
    halves = packed.reshape(packed.shape[0], -1, chunk // 2)
    return torch.stack((halves & 15, halves >> 4), dim=2).flatten(1)


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None,
    *,
    zeros_are_less_one: bool,
) -> Int4Weight:
    """Repack a GPTQ layer.

    Args:
        qweight: [in_features / 8, out_features], int32: eight numbers of one column a word, the first lowest.
        qzeros: [num_groups, out_features / 8], int32.
        scales: [num_groups, out_features].
        g_idx: [in_features], int32, group of each row where they are not in order (act-order); None: in order.
        zeros_are_less_one: as the first version of the format stores them.
    """
    numbers = _words(qweight.T)  # [out_features, in_features]
    zeros = _words(qzeros).T  # [out_features, num_groups]
    if zeros_are_less_one:
        zeros = (zeros + 1) & 15
    permutation = None
    if g_idx is not None and bool((g_idx[1:] < g_idx[:-1]).any()):
        permutation = torch.argsort(g_idx, stable=True)
        numbers = numbers[:, permutation]
        permutation = permutation.int()
    return _weight(numbers, scales.T, zeros, permutation)


def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Int4Weight:
    """Repack an AWQ layer.

    Args:
        qweight: [in_features, out_features / 8], int32: eight columns a word, in the order 0, 2, 4, 6, 1, 3, 5, 7.
        qzeros: [num_groups, out_features / 8], int32, in the same order.
        scales: [num_groups, out_features].
    """
    place = torch.tensor(_AWQ_ORDER, device=qweight.device).argsort()
    numbers, zeros = (_words(words).view(len(words), -1, 8)[:, :, place].flatten(1).T for words in (qweight, qzeros))
    return _weight(numbers, scales.T, zeros, None)


def from_compressed_tensors(
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_zero_point: torch.Tensor | None,
    weight_g_idx: torch.Tensor | None,
) -> Int4Weight:
    """Repack a layer of compressed-tensors' pack-quantized format.

    Args:
        weight_packed: [out_features, in_features / 8], int32: number + 8, the first lowest.
        weight_scale: [out_features, num_groups].
        weight_zero_point: [out_features / 8, num_groups], int32: zero + 8; None: 0.
        weight_g_idx: [in_features], group of each number where they are not in order; None: in order.
    """
    numbers = _words(weight_packed)
    zeros = None if weight_zero_point is None else _words(weight_zero_point.T).T[: len(numbers)]
    permutation = None
    if weight_g_idx is not None and bool((weight_g_idx[1:] < weight_g_idx[:-1]).any()):
        permutation = torch.argsort(weight_g_idx, stable=True)
        numbers = numbers[:, permutation]
        permutation = permutation.int()
    return _weight(numbers, weight_scale, zeros, permutation)


def _words(words: torch.Tensor) -> torch.Tensor:
    """[rows, n] of int32 -> [rows, 8 * n] of uint8: the numbers of each word, the lowest first."""
    shifts = torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)
    return ((words.unsqueeze(2) >> shifts) & 15).flatten(1).to(torch.uint8)


def _weight(
    numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, permutation: torch.Tensor | None
) -> Int4Weight:
    group_size = numbers.shape[1] // scales.shape[1]
    part = group_of(group_size)
    if part != group_size:
        scales = scales.repeat_interleave(group_size // part, 1)
        zeros = None if zeros is None else zeros.repeat_interleave(group_size // part, 1)
        group_size = part
    packed = pack_int4(numbers, group_size)
    return Int4Weight(packed, scales.contiguous(), None if zeros is None else zeros.contiguous(), permutation)
