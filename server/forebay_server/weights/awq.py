"""AWQ checkpoints in the `gemm` layout: qweight, qzeros and scales, in 4 bits.

Eight outputs lie in each word of 32 bits, in the order 0, 2, 4, 6, 1, 3, 5, 7.
Source: Lin et al. 2023, arXiv:2306.00978; the layout of AutoAWQ.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from forebay_kernels.int4_weights import from_awq
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.weights.config_values import ConfigValues
from forebay_server.weights.int4_layout import FLOATS, grouped, without_usual_zeros
from forebay_server.weights.layer_format import LayerFormat, LayoutError, TensorHeader, expect, expect_matrix


@dataclass(frozen=True, slots=True)
class AwqMethod:
    """See `QuantizationMethod`."""

    group_size: int
    """-1: a whole row."""

    def layer_format(self, layer: str, parts: Mapping[str, TensorHeader]) -> LayerFormat | None:
        """See `QuantizationMethod.layer_format`: a layer without qweight is not quantized."""
        if "qweight" not in parts:
            return None
        return LayerFormat("AWQ int4", "qweight", ("qzeros", "scales"), self._describe, self._decode)

    def _describe(self, parts: Mapping[str, TensorHeader]) -> tuple[tuple[int, int], WeightFormat]:
        columns, words = expect_matrix(parts, "qweight", "I32")
        rows = words * 8
        group_size = columns if self.group_size == -1 else self.group_size
        if columns % group_size:
            raise LayoutError("qweight", f"has {columns} inputs, which are no whole groups of {group_size}")
        groups = columns // group_size
        expect(parts, "scales", (groups, rows), FLOATS)
        expect(parts, "qzeros", (groups, words), ("I32",))
        scale_bytes = 4 if parts["scales"].dtype == "F32" else 2
        return (rows, columns), WeightFormat("int4", grouped(group_size, "qweight"), scale_bytes, has_zeros=True)

    def _decode(self, parts: Mapping[str, torch.Tensor]) -> LinearWeight:
        return without_usual_zeros(from_awq(parts["qweight"], parts["qzeros"], parts["scales"]))


def read_awq(config: ConfigValues) -> AwqMethod:
    """From a parsed `quantization_config` or `quant_config.json`.

    Raises:
        StartupError: 2 for what is not supported, 16 for what makes no sense.
    """
    config.choice("bits" if config.has("bits") else "w_bit", (4,), 4)
    version = config.values.get("version", "gemm")
    if not isinstance(version, str) or version.lower() != "gemm":
        raise config.unsupported("version", "gemm is")
    return AwqMethod(config.group_size("group_size" if config.has("group_size") else "q_group_size", 128))
