"""How a checkpoint is quantized: `quantization_config`, `compression_config` or `hf_quant_config.json`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from forebay_operator.facts.config_reader import ConfigReader
from forebay_operator.facts.model_facts import Checkpoint, CheckpointFormat, TensorGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One scheme for all quantized layers, and the modules that are left out."""

    format: CheckpointFormat
    bits: int = 0
    group_size: int = 0
    block: int = 0
    zero_points: bool = False
    act_order: bool = False
    kv_cache_dtype: Literal["", "fp8", "int8"] = ""
    ignored: tuple[str, ...] = ()
    """Module names, parts of them, `re:` patterns, or names with `*`."""
    quantizes_head: bool = False
    """The scheme takes in `lm_head` unless it is ignored."""

    def checkpoint(self, container: Literal["safetensors", "none"]) -> Checkpoint:
        """The scheme as a checkpoint whose sizes are not known yet."""
        return Checkpoint(
            container=container,
            format=self.format,
            bits=self.bits,
            group_size=self.group_size,
            block=self.block,
            zero_points=self.zero_points,
            act_order=self.act_order,
            kv_cache_dtype=self.kv_cache_dtype,
        )


def read_scheme(config: ConfigReader, modelopt: Mapping[str, Any] | None = None) -> Scheme | None:
    """The scheme of a configuration; None when the checkpoint is not quantized.

    Args:
        config: config.json.
        modelopt: hf_quant_config.json, if there is one.

    Raises:
        FactsError: a method, a width or a mix of schemes that is not supported.
    """
    key = "quantization_config" if config.has("quantization_config") else "compression_config"
    data = config.data.get(key)
    if data is None and modelopt is not None:
        return _modelopt(ConfigReader(modelopt.get("quantization", modelopt), "hf_quant_config.json"))
    if data is None:
        return None
    if not isinstance(data, dict):
        raise config.error(key, f"must be an object, not {data!r}")
    quantization = ConfigReader(data, f"{config.source} {key}")
    method = quantization.text("quant_method", "compressed-tensors" if "config_groups" in data else None)
    reader = _METHODS.get(method)
    if reader is None:
        raise quantization.error("quant_method", f"is {method!r}, which is not supported; known: {', '.join(_METHODS)}")
    return reader(quantization)


def apply_scheme(groups: tuple[TensorGroup, ...], scheme: Scheme) -> tuple[TensorGroup, ...]:
    """Mark which matrices the scheme really quantizes; one that is ignored in some layers only is split in two."""
    marked: list[TensorGroup] = []
    for group in groups:
        is_head = group.name == "lm_head" and scheme.quantizes_head
        if not group.quantizable and not is_head:
            marked.append(group)
            continue
        ignored = [layer for layer in range(max(group.layers, 1)) if _is_ignored(group, layer, scheme.ignored)]
        kept = max(group.layers, 1) - len(ignored)
        if not ignored or not kept:
            marked.append(replace(group, quantizable=not ignored))
        else:
            marked.append(replace(group, layers=kept, quantizable=True))
            marked.append(replace(group, layers=len(ignored), quantizable=False))
    return tuple(marked)


_MODULES = {
    "kv_proj": ("k_proj", "v_proj"),
    "kv_a_proj": ("kv_a_proj_with_mqa",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "experts.gate_up_proj": ("experts.0.gate_proj", "experts.0.up_proj"),
    "experts.down_proj": ("experts.0.down_proj",),
    "shared_expert.gate_up_proj": ("shared_expert.gate_proj",),
    "shared_experts.gate_up_proj": ("shared_experts.gate_proj",),
}
"""Groups whose modules have other names."""


def _is_ignored(group: TensorGroup, layer: int, patterns: tuple[str, ...]) -> bool:
    """Whether any of the group's modules in one layer is left unquantized."""
    block = "self_attn" if not any(part in group.name for part in ("gate_up", "down")) else "mlp"
    for module in _MODULES.get(group.name, (group.name,)):
        path = module if group.name == "lm_head" else f"model.layers.{layer}.{block}.{module}"
        if any(_matches(path, pattern) for pattern in patterns):
            return True
    return False


def _matches(path: str, pattern: str) -> bool:
    """`re:` is a regular expression, `*` any text; everything else is the name or whole parts of it."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], path) is not None
    if "*" in pattern:
        return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), path) is not None
    return f".{pattern}." in f".{path}."


def _gptq(config: ConfigReader) -> Scheme:
    bits = config.size("bits")
    if bits not in (4, 8):
        raise config.error("bits", f"must be 4 or 8, not {bits}")
    return Scheme(
        format="gptq",
        bits=bits,
        group_size=config.size("group_size", 128, minimum=-1),
        zero_points=not config.flag("sym", True),
        act_order=config.flag("desc_act", False),
        ignored=_names(config, "modules_to_not_convert"),
        quantizes_head=config.flag("lm_head", False),
    )


def _awq(config: ConfigReader) -> Scheme:
    bits = config.size("bits" if config.has("bits") else "w_bit", 4)
    if bits != 4:
        raise config.error("bits", f"must be 4, not {bits}")
    key = "group_size" if config.has("group_size") else "q_group_size"
    return Scheme(
        format="awq",
        bits=4,
        group_size=config.size(key, 128, minimum=-1),
        zero_points=config.flag("zero_point", True),
        ignored=_names(config, "modules_to_not_convert"),
    )


def _fp8(config: ConfigReader) -> Scheme:
    ignored = _names(config, "modules_to_not_convert") or _names(config, "ignored_layers")
    shape = config.items("weight_block_size")
    if not shape:
        return Scheme(format="fp8", ignored=ignored)
    return Scheme(format="fp8-block", block=_block_edge(config, "weight_block_size", shape), ignored=ignored)


def _mxfp4(config: ConfigReader) -> Scheme:
    return Scheme(format="mxfp4", bits=4, group_size=32, ignored=_names(config, "modules_to_not_convert"))


def _compressed_tensors(config: ConfigReader) -> Scheme:
    groups = config.data.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise config.error("config_groups", "must be an object with at least one scheme")
    schemes = {_compressed_weights(config, name, group) for name, group in groups.items()}
    if len(schemes) > 1:
        raise config.error("config_groups", f"mixes {len(schemes)} schemes of weights, which is not supported")
    kv: Literal["", "fp8", "int8"] = ""
    kv_scheme = config.data.get("kv_cache_scheme")
    if isinstance(kv_scheme, dict):
        kv = "fp8" if kv_scheme.get("type") == "float" else "int8"
    return replace(schemes.pop(), ignored=_names(config, "ignore"), kv_cache_dtype=kv, quantizes_head=True)


def _compressed_weights(config: ConfigReader, name: str, group: Any) -> Scheme:
    """The weights' part of one entry of `config_groups`."""
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise config.error(f"config_groups.{name}.weights", "is missing")
    weights = ConfigReader(group["weights"], f"{config.source}.config_groups.{name}.weights")
    kind, bits = weights.text("type", "int"), weights.size("num_bits")
    size = weights.size("group_size", 0, minimum=-1)
    if kind == "float" and bits == 8:
        shape = weights.items("block_structure")
        return (
            Scheme(format="fp8-block", block=_block_edge(weights, "block_structure", shape))
            if shape
            else Scheme(format="fp8")
        )
    if kind == "float" and bits == 4:
        return (
            Scheme(format="mxfp4", bits=4, group_size=32)
            if size == 32
            else Scheme(format="nvfp4", bits=4, group_size=16)
        )
    if kind == "int" and bits == 8 and size <= 0:
        return Scheme(format="int8")
    if kind == "int" and bits in (4, 8):
        order = weights.data.get("actorder")
        return Scheme(
            format="int8" if bits == 8 else "int4",
            bits=bits,
            group_size=size or -1,
            zero_points=bits == 4 and not weights.flag("symmetric", True),
            act_order=bits == 4 and order in (True, "group"),
        )
    raise weights.error("num_bits", f"{bits} with type {kind!r} is not supported")


def _modelopt(config: ConfigReader) -> Scheme:
    algorithm = config.text("quant_algo")
    kv_text = config.text("kv_cache_quant_algo", "")
    kv: Literal["", "fp8", "int8"] = "fp8" if kv_text == "FP8" else "int8" if kv_text == "INT8" else ""
    ignored = _names(config, "exclude_modules") or _names(config, "ignore")
    if algorithm == "FP8":
        return Scheme(format="fp8", kv_cache_dtype=kv, ignored=ignored, quantizes_head=True)
    if algorithm == "NVFP4":
        size = config.size("group_size", 16)
        return Scheme(format="nvfp4", bits=4, group_size=size, kv_cache_dtype=kv, ignored=ignored, quantizes_head=True)
    raise config.error("quant_algo", f"is {algorithm!r}, which is not supported; known: FP8, NVFP4")


def _block_edge(config: ConfigReader, key: str, shape: list[Any]) -> int:
    if len(shape) != 2 or shape[0] != shape[1] or not isinstance(shape[0], int) or shape[0] < 1:
        raise config.error(key, f"must be two equal positive numbers, not {shape!r}")
    return shape[0]


def _names(config: ConfigReader, key: str) -> tuple[str, ...]:
    return tuple(str(name) for name in config.items(key))


_METHODS = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
}
