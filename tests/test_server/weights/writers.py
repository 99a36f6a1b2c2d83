"""Writers of quantized checkpoints, each from the definition of its format, with what the numbers mean.

Nothing here uses the code that reads: numbers are drawn, packed bit by bit, and multiplied out by the format's formula.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.test_server.models.tiny_llama import tiny_config, tiny_weights

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of each half byte of a word, from the lowest on."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as it is stored, and the matrix [out_features, in_features] that it means."""

    parts: dict[str, torch.Tensor]
    meaning: torch.Tensor


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way of storing layers."""

    config: Mapping[str, Any]
    """For `quantization_config`."""
    write: Callable[[int, int, torch.Generator], Layer]
    """From out_features, in_features and a source of numbers."""
    ignore: tuple[str, ...] = field(default=())
    """Ends of the names of layers that stay as they are."""


def words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., n] of unsigned numbers -> [..., n * bits / 32] of int32, the first number lowest."""
    in_a_word = 32 // bits
    grouped = numbers.long().reshape(*numbers.shape[:-1], -1, in_a_word)
    values = sum(grouped[..., place] << (bits * place) for place in range(in_a_word))
    assert isinstance(values, torch.Tensor)
    return torch.where(values >= 1 << 31, values - (1 << 32), values).to(torch.int32)


def drawn_scales(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(shape, generator=generator) * 0.02 + 0.005).to(dtype)


def gptq(
    *, bits: int = 4, group_size: int = 32, desc_act: bool = False, sym: bool = True, stored_as: str = "gptq"
) -> Scheme:
    def write(rows: int, columns: int, generator: torch.Generator) -> Layer:
        size = columns if group_size == -1 else group_size
        num_groups, highest = columns // size, 1 << bits
        numbers = torch.randint(0, highest, (columns, rows), generator=generator)
        zeros = torch.randint(1, highest, (num_groups, rows), generator=generator)
        if sym:
            zeros = torch.full_like(zeros, highest // 2)
        scales = drawn_scales((num_groups, rows), generator, torch.float16)
        g_idx = torch.arange(columns) // size
        if desc_act:
            g_idx = g_idx[torch.randperm(columns, generator=generator)]
        parts = {
            "qweight": words(numbers.T, bits).T.contiguous(),
            "qzeros": words((zeros - 1 if stored_as == "gptq" else zeros) % highest, bits),
            "scales": scales,
            "g_idx": g_idx.int(),
        }
        meaning = (numbers - zeros[g_idx]).float() * scales.float()[g_idx]
        return Layer(parts, meaning.T.contiguous())

    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": desc_act, "sym": sym}
    return Scheme({**config, "checkpoint_format": stored_as, "lm_head": False}, write)


def awq(*, group_size: int = 32) -> Scheme:
    def write(rows: int, columns: int, generator: torch.Generator) -> Layer:
        num_groups = columns // group_size
        numbers = torch.randint(0, 16, (columns, rows), generator=generator)
        zeros = torch.randint(0, 16, (num_groups, rows), generator=generator)
        scales = drawn_scales((num_groups, rows), generator, torch.float16)
        order = torch.tensor([8 * word + place for word in range(rows // 8) for place in AWQ_ORDER])
        parts = {"qweight": words(numbers[:, order], 4), "qzeros": words(zeros[:, order], 4), "scales": scales}
        groups = torch.arange(columns) // group_size
        return Layer(parts, ((numbers - zeros[groups]).float() * scales.float()[groups]).T.contiguous())

    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    return Scheme({**config, "modules_to_not_convert": None}, write)


def compressed(
    weights: Mapping[str, Any],
    write: Callable[[int, int, torch.Generator], Layer],
    *,
    stored_as: str,
    inputs: Mapping[str, Any] | None = None,
    ignore: tuple[str, ...] = (),
    targets: tuple[str, ...] = ("Linear",),
) -> Scheme:
    group = {"targets": list(targets), "weights": dict(weights), "input_activations": inputs and dict(inputs)}
    config = {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "output_activations": None}},
        "ignore": ["lm_head", *(f"re:.*{name}$" for name in ignore)],
        "kv_cache_scheme": None,
    }
    return Scheme(config, write, ignore)


DYNAMIC_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
DYNAMIC_FP8 = {**DYNAMIC_INT8, "type": "float"}


def compressed_int8(*, strategy: str = "channel", ignore: tuple[str, ...] = ()) -> Scheme:
    def write(rows: int, columns: int, generator: torch.Generator) -> Layer:
        numbers = torch.randint(-128, 128, (rows, columns), generator=generator)
        scales = drawn_scales((rows, 1) if strategy == "channel" else (1,), generator, torch.bfloat16) / 16
        return Layer({"weight": numbers.to(torch.int8), "weight_scale": scales}, numbers.float() * scales.float())

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False}
    return compressed(weights, write, stored_as="int-quantized", inputs=DYNAMIC_INT8, ignore=ignore)


def compressed_packed(
    *, bits: int = 4, group_size: int = 32, symmetric: bool = True, actorder: str | None = None
) -> Scheme:
    def write(rows: int, columns: int, generator: torch.Generator) -> Layer:
        size = columns if group_size == -1 else group_size
        half = 1 << (bits - 1)
        numbers = torch.randint(-half, half, (rows, columns), generator=generator)
        zeros = torch.zeros(rows, columns // size, dtype=torch.int64)
        if not symmetric:
            zeros = torch.randint(-half, half, zeros.shape, generator=generator)
        scales = drawn_scales((rows, columns // size), generator, torch.bfloat16)
        g_idx = torch.arange(columns) // size
        if actorder == "group":
            g_idx = g_idx[torch.randperm(columns, generator=generator)]
        parts = {
            "weight_packed": words(numbers + half, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if actorder == "group":
            parts["weight_g_idx"] = g_idx.int()
        if not symmetric:
            parts["weight_zero_point"] = words((zeros + half).T, bits).T.contiguous()
        return Layer(parts, (numbers - zeros[:, g_idx]).float() * scales.float()[:, g_idx])

    strategy = "channel" if group_size == -1 else "group"
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "dynamic": False}
    if group_size != -1:
        weights["group_size"] = group_size
    return compressed(weights | {"actorder": actorder}, write, stored_as="pack-quantized")


def fp8_layer(rows: int, columns: int, generator: torch.Generator, shape: tuple[int, ...], scale: str) -> Layer:
    numbers = torch.randn(rows, columns, generator=generator).mul(100).to(torch.float8_e4m3fn)
    scales = drawn_scales(shape, generator, torch.float32) / 16
    if len(shape) == 2 and shape[1] > 1:
        spread = torch.kron(scales, torch.ones(128, 128))[:rows, :columns]
    else:
        spread = scales.reshape(-1, 1).expand(rows, columns)
    return Layer({"weight": numbers, scale: scales}, numbers.float() * spread)


def compressed_fp8(*, strategy: str = "channel") -> Scheme:
    def write(rows: int, columns: int, generator: torch.Generator) -> Layer:
        shape = {"channel": (rows, 1), "tensor": (1,), "block": (-(-rows // 128), -(-columns // 128))}[strategy]
        return fp8_layer(rows, columns, generator, shape, "weight_scale")

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": False}
    if strategy == "block":
        weights["block_structure"] = [128, 128]
    return compressed(weights, write, stored_as="float-quantized", inputs=DYNAMIC_FP8)


def block_fp8() -> Scheme:
    def write(rows: int, columns: int, generator: torch.Generator) -> Layer:
        return fp8_layer(rows, columns, generator, (-(-rows // 128), -(-columns // 128)), "weight_scale_inv")

    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return Scheme(config, write)


SIZES = {"hidden_size": 256, "intermediate_size": 384, "tie_word_embeddings": False}
"""Rows and columns of whole blocks of 128, and head and groups of every size that is tested."""


def save_quantized_llama(folder: Path, scheme: Scheme, *, seed: int = 0, **changes: Any) -> dict[str, torch.Tensor]:
    """Write a tiny Llama model whose projections are quantized; returns what its weights mean, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(**(SIZES | changes))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": dict(scheme.config)}))
    generator = torch.Generator().manual_seed(seed)
    stored: dict[str, torch.Tensor] = {}
    meaning = tiny_weights(config, seed)
    for name, weight in meaning.items():
        layer = name.removesuffix(".weight")
        if not layer.endswith("_proj") or layer.endswith(scheme.ignore or "\0"):
            stored[name] = weight
            continue
        written = scheme.write(weight.shape[0], weight.shape[1], generator)
        meaning[name] = written.meaning
        stored |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in written.parts.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return meaning


def save_plain_llama(folder: Path, meaning: Mapping[str, torch.Tensor], **changes: Any) -> Path:
    """Write the same model in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(**(SIZES | changes))))
    save_file(dict(meaning), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
