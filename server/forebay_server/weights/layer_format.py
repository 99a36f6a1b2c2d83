"""LayerFormat: how a quantization method stores one linear layer, as several tensors that make one weight."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from forebay_server.layers.weight_forms import LinearWeight, WeightFormat


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a file's header says of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it: `I32`, `BF16`, `F8_E4M3`."""


class LayoutError(Exception):
    """A tensor that cannot be what the method says.

    Args:
        part: the last part of its name.
        problem: continues a sentence that starts with the tensor's name.
    """

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(problem)
        self.part, self.problem = part, problem


@dataclass(frozen=True, slots=True)
class LayerFormat:
    """One way of storing a layer."""

    label: str
    """For people: `GPTQ int4`."""
    main: str
    """The part of the layer that holds its numbers: `qweight`."""
    required: tuple[str, ...]
    """The other parts that must be there."""
    describe: Callable[[Mapping[str, TensorHeader]], tuple[tuple[int, int], WeightFormat]]
    """From the headers of all parts: (out_features, in_features) and the form that the weight has once it is read.

    Raises `LayoutError`.
    """
    decode: Callable[[Mapping[str, torch.Tensor]], LinearWeight]
    """From all parts: the weight, without loss. Raises `LayoutError`."""
    optional: tuple[str, ...] = ()
    """Parts that may be there."""


class QuantizationMethod(Protocol):
    """What a checkpoint's `quantization_config` says."""

    def layer_format(self, layer: str, parts: Mapping[str, TensorHeader]) -> LayerFormat | None:
        """How a layer is stored; None: unquantized.

        Args:
            layer: its name in the checkpoint.
            parts: what is there of it, by the last part of the names.

        Raises:
            LayoutError: the configuration and what is there contradict each other.
        """
        ...


IGNORED_PARTS = frozenset({"input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "q_scale"})
"""Scales of activations and of the KV cache: measured while running, so that what was calibrated is not needed."""


def expect(parts: Mapping[str, TensorHeader], part: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Check one part.

    Raises:
        LayoutError: it has another shape or dtype.
    """
    found = parts[part]
    if found.dtype not in dtypes:
        raise LayoutError(part, f"is stored as {found.dtype}; it must be {' or '.join(dtypes)}")
    if found.shape != shape:
        raise LayoutError(part, f"has the shape {found.shape}; it must have {shape}")


def expect_matrix(parts: Mapping[str, TensorHeader], part: str, dtype: str) -> tuple[int, int]:
    """Check that a part is a matrix of this dtype, and return its shape.

    Raises:
        LayoutError: it is not.
    """
    found = parts[part]
    if found.dtype != dtype:
        raise LayoutError(part, f"is stored as {found.dtype}; it must be {dtype}")
    if len(found.shape) != 2 or 0 in found.shape:
        raise LayoutError(part, f"has the shape {found.shape}; it must be a matrix")
    return found.shape[0], found.shape[1]


def check_order(g_idx: torch.Tensor, part: str, num_groups: int) -> None:
    """Check that a group index fills every group evenly.

    Raises:
        LayoutError: it does not.
    """
    counts = torch.bincount(g_idx.long().clamp(0, num_groups), minlength=num_groups)
    if int(g_idx.min()) < 0 or len(counts) > num_groups or bool((counts != counts[0]).any()):
        raise LayoutError(part, f"does not fill {num_groups} groups evenly")


def unpack_bytes(words: torch.Tensor) -> torch.Tensor:
    """[rows, n] of int32 -> [rows, 4 * n] of int16, 0 to 255: the bytes of each word, the lowest first."""
    return words.contiguous().view(torch.uint8).to(torch.int16)
