"""GPTQ checkpoints: qweight, qzeros, scales and g_idx, in 4 or 8 bits.

Eight (four) numbers of one output lie in each word of 32 bits, along the inputs, the lowest first. The first version of
the format stores zero - 1. With act-order (`desc_act`) g_idx says which group each input belongs to.
Source: Frantar et al. 2022, arXiv:2210.17323; the layout of AutoGPTQ and GPTQModel.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from forebay_kernels.int4_weights import from_gptq
from forebay_kernels.int8_weights import Int8Weight
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.weights.config_values import ConfigValues
from forebay_server.weights.int4_layout import FLOATS, grouped, without_usual_zeros
from forebay_server.weights.layer_format import (
    LayerFormat,
    LayoutError,
    TensorHeader,
    check_order,
    expect,
    expect_matrix,
    unpack_bytes,
)


@dataclass(frozen=True, slots=True)
class GptqMethod:
    """See `QuantizationMethod`."""

    bits: int
    group_size: int
    """-1: a whole row."""
    desc_act: bool
    symmetric: bool
    zeros_are_less_one: bool
    overrides: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)
    """By regular expression: what is different there; None: not quantized."""

    def layer_format(self, layer: str, parts: Mapping[str, TensorHeader]) -> LayerFormat | None:
        """See `QuantizationMethod.layer_format`: a layer without qweight is not quantized."""
        if "qweight" not in parts:
            return None
        bits, group_size = self.bits, self.group_size
        for pattern, override in self.overrides.items():
            if re.match(pattern, layer):
                if override is None:
                    raise LayoutError("qweight", f"is there although `dynamic` leaves {layer} out")
                bits, group_size = override.get("bits", bits), override.get("group_size", group_size)
        if bits not in (4, 8):
            raise LayoutError("qweight", f"has {bits} bits; 4 and 8 are supported")
        layout = _Layout(bits, group_size, self.desc_act, self.symmetric, self.zeros_are_less_one)
        return LayerFormat(
            label=f"GPTQ int{bits}",
            main="qweight",
            required=("qzeros", "scales"),
            optional=("g_idx",),
            describe=layout.describe,
            decode=layout.decode,
        )


@dataclass(frozen=True, slots=True)
class _Layout:
    bits: int
    group_size: int
    desc_act: bool
    symmetric: bool
    zeros_are_less_one: bool

    def describe(self, parts: Mapping[str, TensorHeader]) -> tuple[tuple[int, int], WeightFormat]:
        in_a_word = 32 // self.bits
        words, rows = expect_matrix(parts, "qweight", "I32")
        columns = words * in_a_word
        group_size = columns if self.group_size == -1 else self.group_size
        if columns % group_size:
            raise LayoutError("qweight", f"has {columns} inputs, which are no whole groups of {group_size}")
        groups = columns // group_size
        expect(parts, "scales", (groups, rows), FLOATS)
        expect(parts, "qzeros", (groups, -(-rows // in_a_word)), ("I32",))
        if "g_idx" in parts:
            expect(parts, "g_idx", (columns,), ("I32", "I64"))
        if self.bits == 8:
            return (rows, columns), WeightFormat("int8", 0 if groups == 1 else group_size)
        scale_bytes = 4 if parts["scales"].dtype == "F32" else 2
        form = WeightFormat(
            "int4", grouped(group_size, "qweight"), scale_bytes, has_zeros=not self.symmetric, is_permuted=self.desc_act
        )
        return (rows, columns), form

    def decode(self, parts: Mapping[str, torch.Tensor]) -> LinearWeight:
        g_idx = parts.get("g_idx")
        num_groups = parts["scales"].shape[0]
        if g_idx is not None:
            check_order(g_idx, "g_idx", num_groups)
        if self.bits == 8:
            return self._decode_bytes(parts, g_idx)
        weight = from_gptq(
            parts["qweight"], parts["qzeros"], parts["scales"], g_idx, zeros_are_less_one=self.zeros_are_less_one
        )
        return without_usual_zeros(weight)

    def _decode_bytes(self, parts: Mapping[str, torch.Tensor], g_idx: torch.Tensor | None) -> LinearWeight:
        """Int8Weight, or float32 where zeros are not in the middle or groups not in order."""
        numbers = unpack_bytes(parts["qweight"].T)  # [out_features, in_features]
        rows, columns = numbers.shape
        zeros = unpack_bytes(parts["qzeros"])[:, :rows].T  # [out_features, num_groups]
        if self.zeros_are_less_one:
            zeros = (zeros + 1) & 255
        scales = parts["scales"].T.float()
        is_ordered = g_idx is None or not bool((g_idx[1:] < g_idx[:-1]).any())
        if is_ordered and bool((zeros == 128).all()):
            return Int8Weight((numbers - 128).to(torch.int8), scales.contiguous())
        group_size = columns // scales.shape[1]
        groups = torch.arange(columns) // group_size if g_idx is None else g_idx.long()
        return (numbers - zeros[:, groups]).float() * scales[:, groups]


def read_gptq(config: ConfigValues) -> GptqMethod:
    """From a parsed `quantization_config` or `quantize_config.json`.

    Raises:
        StartupError: 2 for what is not supported, 16 for what makes no sense.
    """
    bits = config.choice("bits", (4, 8))
    stored = config.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    overrides: dict[str, dict[str, Any] | None] = {}
    for pattern, override in config.mapping("dynamic").items():
        if pattern.startswith("-:"):
            overrides[pattern.removeprefix("-:")] = None
        else:
            overrides[pattern.removeprefix("+:")] = override if isinstance(override, dict) else {}
    return GptqMethod(
        bits=bits,
        group_size=config.group_size("group_size", 128),
        desc_act=config.flag("desc_act"),
        symmetric=config.flag("sym", True),
        zeros_are_less_one=stored == "gptq",
        overrides=overrides,
    )
