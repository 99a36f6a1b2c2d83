"""How a Hugging Face folder says that it is quantized, and which method reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay_server.models.model_config import unsupported
from forebay_server.weights.awq import read_awq
from forebay_server.weights.checkpoint import read_json
from forebay_server.weights.compressed_tensors import read_compressed_tensors
from forebay_server.weights.config_values import ConfigValues
from forebay_server.weights.gptq import read_gptq
from forebay_server.weights.hf_fp8 import read_fp8
from forebay_server.weights.layer_format import QuantizationMethod

METHODS: dict[str, Callable[[ConfigValues], QuantizationMethod]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
}
_IN_CONFIG = ("quantization_config", "compression_config")
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files of their own that old checkpoints have, and what they mean."""


def read_quantization(folder: Path, config: dict[str, Any]) -> QuantizationMethod | None:
    """The method of a checkpoint; None: it is not quantized.

    Args:
        folder: of the checkpoint.
        config: its parsed `config.json`.

    Raises:
        StartupError: 2 for a method that is not supported, 16 for a configuration that makes no sense.
    """
    source = str(folder / "config.json")
    for key in _IN_CONFIG:
        if config.get(key) is not None:
            values = ConfigValues(config, source).inner(key)
            default = "compressed-tensors" if values.has("config_groups") else None
            return _read(values, values.values.get("quant_method", default))
    for name, method in _FILES.items():
        if (folder / name).is_file():
            return _read(ConfigValues(read_json(folder / name), str(folder / name)), method)
    return None


def _read(values: ConfigValues, method: object) -> QuantizationMethod:
    if not isinstance(method, str):
        raise values.wrong("quant_method", f"one of {', '.join(METHODS)}")
    if method not in METHODS:
        raise unsupported(
            f"{values.source}: quant_method is {method!r}, which is not supported; these are: {', '.join(METHODS)}"
        )
    return METHODS[method](values)
