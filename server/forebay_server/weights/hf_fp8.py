"""FP8 checkpoints of Hugging Face: a float8_e4m3fn weight with a scale for all of it, for each output or each block.

`weight_scale_inv` and `weight_scale` both multiply. Source: DeepSeek-V3, arXiv:2412.19437, and its checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.weights.config_values import ConfigValues
from forebay_server.weights.layer_format import LayerFormat, LayoutError, TensorHeader, expect_matrix

FP8 = "F8_E4M3"
_SCALES = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class Fp8Method:
    """See `QuantizationMethod`."""

    def layer_format(self, layer: str, parts: Mapping[str, TensorHeader]) -> LayerFormat | None:
        """See `QuantizationMethod.layer_format`: a layer whose weight is no FP8 is not quantized."""
        if "weight" not in parts or not parts["weight"].dtype.startswith("F8"):
            return None
        return fp8_layer("weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale")


def fp8_layer(scale: str) -> LayerFormat:
    """A layer whose weight is FP8.

    Args:
        scale: the part that holds its scales.
    """

    def describe(parts: Mapping[str, TensorHeader]) -> tuple[tuple[int, int], WeightFormat]:
        rows, columns = expect_matrix(parts, "weight", FP8)
        if parts[scale].dtype not in _SCALES:
            raise LayoutError(scale, f"is stored as {parts[scale].dtype}; it must be {' or '.join(_SCALES)}")
        is_by_block = _is_by_block(scale, parts[scale].shape, rows, columns)
        return (rows, columns), WeightFormat("fp8", SCALE_BLOCK if is_by_block else 0, quantizes_input=True)

    def decode(parts: Mapping[str, torch.Tensor]) -> LinearWeight:
        values, scales = parts["weight"], parts[scale].float()
        if _is_by_block(scale, tuple(scales.shape), *values.shape):
            return Fp8Weight(values, scales.contiguous())
        return Fp8Weight(values, scales.flatten().expand(values.shape[0]).contiguous())

    return LayerFormat("FP8", "weight", (scale,), describe, decode)


def _is_by_block(part: str, shape: tuple[int, ...], rows: int, columns: int) -> bool:
    """Whether scales are by block; otherwise they are one for all or one for each output.

    Raises:
        LayoutError: they are neither.
    """
    if shape in ((), (1,), (1, 1), (rows,), (rows, 1)):
        return False
    blocks = (-(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK))
    if shape != blocks:
        raise LayoutError(
            part, f"has the shape {shape}; a weight of {rows} x {columns} has {blocks} blocks of 128 x 128"
        )
    return True


def read_fp8(config: ConfigValues) -> Fp8Method:
    """From a parsed `quantization_config`.

    Raises:
        StartupError: 2 for what is not supported, 16 for what makes no sense.
    """
    config.choice("fmt", ("e4m3",), "e4m3")
    config.choice("activation_scheme", ("static", "dynamic"), "dynamic")
    block = config.values.get("weight_block_size")
    if block is not None and block != [SCALE_BLOCK, SCALE_BLOCK]:
        raise config.unsupported("weight_block_size", f"[{SCALE_BLOCK}, {SCALE_BLOCK}] is")
    return Fp8Method()
