"""compressed-tensors checkpoints: int-quantized, float-quantized and pack-quantized layers, as `config_groups` says.

Source: the format's own library, `compressed-tensors`, and its documentation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from forebay_kernels.int4_weights import from_compressed_tensors
from forebay_kernels.int8_weights import Int8Weight
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.weights.config_values import ConfigValues
from forebay_server.weights.hf_fp8 import fp8_layer
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
from forebay_server.weights.quantization import TABLE, matches

LINEAR = "Linear"
_TABLES = (TABLE, "embed_tokens")


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """The `weights` of one group, and whether inputs are quantized too."""

    targets: tuple[str, ...]
    bits: int
    kind: Literal["int", "float"]
    is_symmetric: bool
    group_size: int
    """-1: a whole row."""
    quantizes_input: bool


@dataclass(frozen=True, slots=True)
class CompressedTensorsMethod:
    """See `QuantizationMethod`."""

    schemes: Sequence[WeightScheme]
    ignore: tuple[str, ...]

    def layer_format(self, layer: str, parts: Mapping[str, TensorHeader]) -> LayerFormat | None:
        """See `QuantizationMethod.layer_format`."""
        weight = parts.get("weight")
        is_quantized = "weight_packed" in parts or "weight_scale" in parts
        scheme = self._scheme_of(layer)
        if scheme is None:
            if is_quantized:
                part = "weight_packed" if "weight_packed" in parts else "weight_scale"
                raise LayoutError(part, "is there although no group of quantization_config has the layer as a target")
            return None
        if weight is not None and not is_quantized and (len(weight.shape) != 2 or layer.endswith(_TABLES)):
            return None  # a norm, or embeddings: no linear layer
        if scheme.kind == "float":
            return fp8_layer("weight_scale")
        if scheme.bits == 8 and "weight_packed" not in parts:
            return self._whole_bytes(scheme)
        return self._packed(scheme)

    def _scheme_of(self, layer: str) -> WeightScheme | None:
        if any(matches(layer, pattern) for pattern in self.ignore):
            return None
        named = (
            scheme
            for scheme in self.schemes
            if any(target != LINEAR and matches(layer, target) for target in scheme.targets)
        )
        of_class = (scheme for scheme in self.schemes if LINEAR in scheme.targets)
        return next(named, None) or next(of_class, None)

    def _whole_bytes(self, scheme: WeightScheme) -> LayerFormat:
        def describe(parts: Mapping[str, TensorHeader]) -> tuple[tuple[int, int], WeightFormat]:
            rows, columns = expect_matrix(parts, "weight", "I8")
            group_size = _check_scales(parts, scheme, rows, columns)
            return (rows, columns), WeightFormat("int8", group_size, quantizes_input=scheme.quantizes_input)

        def decode(parts: Mapping[str, torch.Tensor]) -> LinearWeight:
            numbers, scales = parts["weight"], _scales(parts, parts["weight"].shape[0])
            zeros = parts.get("weight_zero_point")
            if zeros is None or not bool(zeros.any()):
                return Int8Weight(numbers, scales)
            return _dequantized(numbers.to(torch.int16), zeros.to(torch.int16), scales)

        return LayerFormat("int8", "weight", ("weight_scale",), describe, decode, ("weight_zero_point",))

    def _packed(self, scheme: WeightScheme) -> LayerFormat:
        in_a_word = 32 // scheme.bits

        def describe(parts: Mapping[str, TensorHeader]) -> tuple[tuple[int, int], WeightFormat]:
            rows, words = expect_matrix(parts, "weight_packed", "I32")
            columns = words * in_a_word
            group_size = _check_scales(parts, scheme, rows, columns)
            if "weight_zero_point" in parts:
                groups = parts["weight_scale"].shape[1]
                expect(parts, "weight_zero_point", (-(-rows // in_a_word), groups), ("I32",))
            if "weight_g_idx" in parts:
                expect(parts, "weight_g_idx", (columns,), ("I32", "I64"))
            form = WeightFormat(
                "int8" if scheme.bits == 8 else "int4",
                group_size if scheme.bits == 8 else grouped(group_size or columns, "weight_packed"),
                4 if scheme.bits == 8 or parts["weight_scale"].dtype == "F32" else 2,
                has_zeros=scheme.bits == 4 and "weight_zero_point" in parts,
                is_permuted="weight_g_idx" in parts,
                quantizes_input=scheme.quantizes_input,
            )
            return (rows, columns), form

        def decode(parts: Mapping[str, torch.Tensor]) -> LinearWeight:
            packed, g_idx = parts["weight_packed"], parts.get("weight_g_idx")
            rows, columns = packed.shape[0], packed.shape[1] * in_a_word
            if parts["weight_shape"].tolist() != [rows, columns]:
                raise LayoutError("weight_shape", f"is {parts['weight_shape'].tolist()}; the layer has {rows, columns}")
            scales, zeros = _scales(parts, rows), parts.get("weight_zero_point")
            if g_idx is not None:
                check_order(g_idx, "weight_g_idx", scales.shape[1])
            if scheme.bits == 4:
                scales = scales.to(parts["weight_scale"].dtype)
                return without_usual_zeros(from_compressed_tensors(packed, scales, zeros, g_idx))
            numbers = unpack_bytes(packed) - 128
            if zeros is None and g_idx is None:
                return Int8Weight(numbers.to(torch.int8), scales)
            middle = torch.zeros_like(scales) if zeros is None else unpack_bytes(zeros.T).T[:rows] - 128
            return _dequantized(numbers, middle, scales, g_idx)

        optional = ("weight_zero_point", "weight_g_idx")
        label = f"packed int{scheme.bits}"
        return LayerFormat(label, "weight_packed", ("weight_scale", "weight_shape"), describe, decode, optional)


def _check_scales(parts: Mapping[str, TensorHeader], scheme: WeightScheme, rows: int, columns: int) -> int:
    """Check the scales of an integer weight; returns the group size, 0 for a whole row."""
    if scheme.group_size == -1:
        if parts["weight_scale"].shape in ((), (1,), (1, 1)):  # one for the tensor
            return 0
        expect(parts, "weight_scale", (rows, 1), FLOATS)
        return 0
    if columns % scheme.group_size:
        raise LayoutError("weight_scale", f"has groups of {scheme.group_size}, which do not divide {columns} inputs")
    expect(parts, "weight_scale", (rows, columns // scheme.group_size), FLOATS)
    return 0 if columns == scheme.group_size else scheme.group_size


def _scales(parts: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor:
    """[out_features, num_groups], float32."""
    scales = parts["weight_scale"].float()
    return (scales if scales.dim() == 2 and len(scales) == rows else scales.flatten().expand(rows, 1)).contiguous()


def _dequantized(
    numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, g_idx: torch.Tensor | None = None
) -> torch.Tensor:
    """(numbers - zeros) * scales, float32, for what no form of ours holds."""
    rows, columns = numbers.shape
    zeros = zeros if zeros.dim() == 2 and len(zeros) == rows else zeros.flatten().expand(rows, 1)
    groups = torch.arange(columns) // (columns // scales.shape[1]) if g_idx is None else g_idx.long()
    return (numbers - zeros[:, groups]).float() * scales[:, groups]


def read_compressed_tensors(config: ConfigValues) -> CompressedTensorsMethod:
    """From a parsed `quantization_config` or `compression_config`.

    Raises:
        StartupError: 2 for what is not supported, 16 for what makes no sense.
    """
    if config.mapping("sparsity_config").get("format", "dense") != "dense":
        raise config.unsupported("sparsity_config", "dense weights are")
    groups = config.inner("config_groups")
    if not groups.values:
        raise config.wrong("config_groups", "an object with at least one group")
    ignore = config.names("ignore")
    schemes = [_read_group(groups.inner(name)) for name in groups.values]
    for pattern in (*ignore, *(target for scheme in schemes for target in scheme.targets)):
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise config.wrong("ignore", f"without the pattern {pattern!r}: {error}") from None
    return CompressedTensorsMethod(schemes, ignore)


def _read_group(group: ConfigValues) -> WeightScheme:
    weights = group.inner("weights")
    kind = weights.choice("type", ("int", "float"), "int")
    bits = weights.choice("num_bits", (8,) if kind == "float" else (4, 8))
    strategies = ("tensor", "channel", "block") if kind == "float" else ("tensor", "channel", "group")
    strategy = weights.choice("strategy", strategies, "group" if weights.has("group_size") else "tensor")
    if strategy == "block" and weights.values.get("block_structure") not in ([128, 128], "128x128"):
        raise weights.unsupported("block_structure", "[128, 128] is")
    group_size = weights.group_size("group_size", -1) if strategy == "group" else -1
    inputs = group.mapping("input_activations")
    if inputs and inputs.get("num_bits") != 8:
        raise group.unsupported("input_activations", "8 bits and null are")
    return WeightScheme(
        targets=group.names("targets"),
        bits=bits,
        kind="float" if kind == "float" else "int",
        is_symmetric=weights.flag("symmetric", True),
        group_size=group_size,
        quantizes_input=bool(inputs),
    )
