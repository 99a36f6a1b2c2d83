"""The block formats of GGUF files: which become our forms as they are, number for number, and which must be rounded.

Q8_0, Q5_0, Q4_0, Q4_1 and Q4_K are int8 or int4 in groups of 32 (Q4_K's scales are products, exact in float32). The
others have smaller groups or more bits than a form of ours: they are dequantized, and int8 in groups of 32 is the form
that suits them. Source: the block definitions of the ggml project.
"""

import numpy as np
import numpy.typing as npt
import torch

from forebay_kernels.int4_weights import Int4Weight, pack_int4
from forebay_kernels.int8_weights import Int8Weight
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.weights.gguf_types import GgufType as Q

GROUP = 32
_PLAIN_DTYPES = {Q.F32: torch.float32, Q.F16: torch.float16, Q.BF16: torch.bfloat16, Q.F64: torch.float64}

_FORMATS = {
    Q.Q4_0: WeightFormat("int4", GROUP, scale_bytes=2),
    Q.Q4_1: WeightFormat("int4", GROUP, scale_bytes=2, has_mins=True),
    Q.Q4_K: WeightFormat("int4", GROUP, scale_bytes=4, has_mins=True),
}
_INT8 = WeightFormat("int8", GROUP)


def suitable_format(kind: Q) -> WeightFormat | None:
    """The form that holds a matrix of this type best; None for types that are not quantized."""
    return None if kind in _PLAIN_DTYPES else _FORMATS.get(kind, _INT8)


def decode(raw: npt.NDArray[np.uint8], kind: Q, shape: tuple[int, ...]) -> LinearWeight:
    """What the bytes of a tensor mean, without any loss.

    Args:
        raw: all bytes of the tensor.
        kind: its type.
        shape: rows first; forms other than plain need two dimensions.

    Returns:
        A form of ours where one holds the type exactly, the tensor itself where it is not quantized, else float32.

    Raises:
        NotImplementedError: the type is unknown to the gguf package.
    """
    if len(shape) == 2 and kind in _EXACT:
        return _EXACT[kind](torch.from_numpy(raw), shape[0])
    if kind in _PLAIN_DTYPES:
        return torch.from_numpy(raw).view(_PLAIN_DTYPES[kind]).view(shape)
    from gguf import GGMLQuantizationType, quants  # takes a moment, and few files need it

    values = quants.dequantize(raw.reshape(*shape[:-1], -1), GGMLQuantizationType(kind))
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).reshape(shape))


def _q8_0(raw: torch.Tensor, rows: int) -> LinearWeight:
    blocks = raw.view(rows, -1, 34)  # a float16 scale, 32 signed numbers
    return Int8Weight(blocks[:, :, 2:].contiguous().view(torch.int8).flatten(1), _halves(blocks[:, :, :2]).float())


def _q5_0(raw: torch.Tensor, rows: int) -> LinearWeight:
    blocks = raw.view(rows, -1, 22)  # a float16 scale, 32 fifth bits, 32 half bytes
    nibbles = torch.cat((blocks[:, :, 6:] & 15, blocks[:, :, 6:] >> 4), dim=2)
    fifth = (blocks[:, :, 2:6].unsqueeze(3) >> torch.arange(8, dtype=torch.uint8)) & 1  # [rows, groups, 4, 8]
    numbers = (nibbles | fifth.flatten(2) << 4).to(torch.int8) - 16
    return Int8Weight(numbers.flatten(1), _halves(blocks[:, :, :2]).float())


def _q4_0(raw: torch.Tensor, rows: int) -> LinearWeight:
    blocks = raw.view(rows, -1, 18)  # a float16 scale, 32 half bytes: the low ones come first, as in our chunks of 32
    return Int4Weight(blocks[:, :, 2:].flatten(1), _halves(blocks[:, :, :2]), None, None)


def _q4_1(raw: torch.Tensor, rows: int) -> LinearWeight:
    blocks = raw.view(rows, -1, 20)  # as Q4_0, with a float16 minimum after the scale
    scales, mins = _halves(blocks[:, :, :2]), _halves(blocks[:, :, 2:4])
    return Int4Weight(blocks[:, :, 4:].flatten(1), scales, None, None, mins)


def _q4_k(raw: torch.Tensor, rows: int) -> LinearWeight:
    """256 numbers in 8 groups: float16 scales of the scales and of the minima, both in 6 bits, then half bytes."""
    blocks = raw.view(rows, -1, 144)
    scale_of_scales, scale_of_mins = (_halves(blocks[:, :, at : at + 2]).float() for at in (0, 2))
    low, middle, high = (blocks[:, :, at : at + 4] for at in (4, 8, 12))
    scales = torch.cat((low & 63, (high & 15) | (low >> 2 & 48)), dim=2)  # [rows, blocks, 8]
    mins = torch.cat((middle & 63, (high >> 4) | (middle >> 2 & 48)), dim=2)
    halves = blocks[:, :, 16:].view(rows, -1, 4, 32)  # each 32 bytes hold two groups
    numbers = torch.stack((halves & 15, halves >> 4), dim=3)
    return Int4Weight(
        pack_int4(numbers.flatten(1), GROUP),
        (scale_of_scales.unsqueeze(2) * scales.float()).flatten(1),
        None,
        None,
        -(scale_of_mins.unsqueeze(2) * mins.float()).flatten(1),
    )


def _halves(pairs: torch.Tensor) -> torch.Tensor:
    """[rows, blocks, 2] of bytes -> [rows, blocks], float16."""
    return pairs.contiguous().view(torch.float16).squeeze(2)


_EXACT = {Q.Q8_0: _q8_0, Q.Q5_0: _q5_0, Q.Q4_0: _q4_0, Q.Q4_1: _q4_1, Q.Q4_K: _q4_k}
