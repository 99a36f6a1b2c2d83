"""Quantized checkpoints that are not whole or not supported: each gives its exit code and names file, tensor or key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay_server.config import EngineConfig
from forebay_server.engine.engine import load_engine
from forebay_server.errors import ExitCode, StartupError
from tests.test_server.weights import writers
from tests.test_server.weights.writers import Scheme, save_quantized_llama

Parts = dict[str, torch.Tensor]
UP = "model.layers.1.mlp.up_proj"


def error_of(folder: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        load_engine(EngineConfig(model=str(folder), kv_cache_tokens=64))
    return caught.value


def change_weights(folder: Path, change: Callable[[Parts], object]) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


def change_quantization(folder: Path, *path: str, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    place = config["quantization_config"]
    for key in path:
        place = place[key]
    place.update(changes)
    file.write_text(json.dumps(config))


def cut(weights: Parts, name: str) -> None:
    weights[name] = weights[name][:-1].contiguous()


@pytest.mark.parametrize(
    ("scheme", "change", "words"),
    [
        (writers.gptq(), lambda w: w.pop(f"{UP}.scales"), f"{UP}.scales is missing"),
        (writers.gptq(), lambda w: w.pop(f"{UP}.qweight"), f"{UP}.g_idx is stored"),
        (writers.gptq(), lambda w: cut(w, f"{UP}.qzeros"), f"{UP}.qzeros has the shape"),
        (writers.gptq(), lambda w: w.update({f"{UP}.qweight": w[f"{UP}.qweight"].float()}), "stored as F32"),
        (writers.gptq(desc_act=True), lambda w: w[f"{UP}.g_idx"].zero_(), f"{UP}.g_idx does not fill"),
        (writers.gptq(desc_act=True), lambda w: w[f"{UP}.g_idx"].fill_(-1), f"{UP}.g_idx does not fill"),
        (writers.awq(), lambda w: cut(w, f"{UP}.scales"), f"{UP}.scales has the shape"),
        (writers.compressed_packed(), lambda w: w.pop(f"{UP}.weight_shape"), f"{UP}.weight_shape is missing"),
        (writers.compressed_packed(), lambda w: w[f"{UP}.weight_shape"].add_(1), f"{UP}.weight_shape is"),
        (writers.compressed_int8(), lambda w: w.pop(f"{UP}.weight_scale"), f"{UP}.weight_scale is missing"),
        (writers.compressed_fp8(), lambda w: cut(w, f"{UP}.weight_scale"), f"{UP}.weight_scale has the shape"),
        (writers.block_fp8(), lambda w: cut(w, f"{UP}.weight_scale_inv"), f"{UP}.weight_scale_inv has the shape"),
        (writers.block_fp8(), lambda w: w.pop(f"{UP}.weight_scale_inv"), f"{UP}.weight_scale is missing"),
        (
            writers.compressed_int8(),
            lambda w: w.update({f"{UP}.weight": torch.zeros(384, 256)}) or w.pop(f"{UP}.weight_scale"),
            f"{UP}.weight",
        ),
        (writers.gptq(), lambda w: w.update({f"{UP}.scale": torch.zeros(3)}), f"{UP}.scale"),
    ],
)
def test_tensor_that_is_missing_or_misshaped_is_named(
    tmp_path: Path, scheme: Scheme, change: Callable[[Parts], object], words: str
) -> None:
    save_quantized_llama(tmp_path, scheme)
    change_weights(tmp_path, change)
    error = error_of(tmp_path)
    assert error.exit_code in (ExitCode.CORRUPT_WEIGHTS, ExitCode.BAD_CONFIGURATION)
    assert words in error.message
    assert str(tmp_path) in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("scheme", "path", "changes", "words"),
    [
        (writers.gptq(), (), {"quant_method": "hqq"}, "hqq"),
        (writers.gptq(), (), {"bits": 3}, "bits is 3"),
        (writers.gptq(), (), {"group_size": 48}, "group_size is 48"),
        (writers.gptq(), (), {"checkpoint_format": "marlin"}, "marlin"),
        (writers.awq(), (), {"version": "gemv"}, "gemv"),
        (writers.awq(), (), {"bits": 8}, "bits is 8"),
        (writers.block_fp8(), (), {"weight_block_size": [64, 64]}, "weight_block_size"),
        (writers.block_fp8(), (), {"fmt": "e5m2"}, "e5m2"),
        (writers.compressed_packed(), ("config_groups", "group_0", "weights"), {"num_bits": 2}, "num_bits is 2"),
        (writers.compressed_int8(), ("config_groups", "group_0", "weights"), {"strategy": "tensor_group"}, "strategy"),
        (writers.compressed_fp8(), (), {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    ],
)
def test_what_is_not_supported_is_exit_2_and_names_the_key(
    tmp_path: Path, scheme: Scheme, path: tuple[str, ...], changes: dict[str, Any], words: str
) -> None:
    save_quantized_llama(tmp_path, scheme)
    change_quantization(tmp_path, *path, **changes)
    error = error_of(tmp_path)
    assert error.exit_code == ExitCode.BAD_CONFIGURATION
    assert words in error.message
    assert "config.json" in error.message


@pytest.mark.parametrize(
    ("scheme", "changes", "words"),
    [
        (writers.gptq(), {"quant_method": 7}, "quant_method is 7"),
        (writers.gptq(), {"group_size": "all"}, "group_size"),
        (writers.gptq(), {"desc_act": "no"}, "desc_act"),
        (writers.compressed_int8(), {"config_groups": {}}, "config_groups"),
        (writers.compressed_int8(), {"config_groups": {"group_0": 3}}, "group_0"),
        (writers.compressed_int8(), {"ignore": "lm_head"}, "ignore"),
        (writers.compressed_int8(), {"ignore": ["re:("]}, "ignore"),
    ],
)
def test_configuration_that_makes_no_sense_is_exit_16(
    tmp_path: Path, scheme: Scheme, changes: dict[str, Any], words: str
) -> None:
    save_quantized_llama(tmp_path, scheme)
    change_quantization(tmp_path, **changes)
    error = error_of(tmp_path)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert words in error.message


def test_quantized_layer_that_is_to_be_ignored_is_named(tmp_path: Path) -> None:
    save_quantized_llama(tmp_path, writers.compressed_int8())
    change_quantization(tmp_path, ignore=["lm_head", UP])
    error = error_of(tmp_path)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert f"{UP}.weight_scale" in error.message


def test_quantized_tensors_without_a_configuration_are_named(tmp_path: Path) -> None:
    save_quantized_llama(tmp_path, writers.gptq())
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    error = error_of(tmp_path)
    assert error.exit_code == ExitCode.BAD_CONFIGURATION
    assert "config.json does not say" in error.message


@pytest.mark.parametrize(
    ("name", "scheme"), [("quantize_config.json", writers.gptq()), ("quant_config.json", writers.awq())]
)
def test_old_files_of_their_own_are_read(tmp_path: Path, name: str, scheme: Scheme) -> None:
    save_quantized_llama(tmp_path, scheme)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    (tmp_path / name).write_text(json.dumps(config.pop("quantization_config")))
    file.write_text(json.dumps(config))
    load_engine(EngineConfig(model=str(tmp_path), kv_cache_tokens=64))


def test_scales_of_activations_and_of_the_cache_are_not_needed(tmp_path: Path) -> None:
    save_quantized_llama(tmp_path, writers.compressed_fp8(strategy="tensor"))
    extra = {f"{UP}.input_scale": torch.ones(1), "model.layers.0.self_attn.k_scale": torch.ones(())}
    change_weights(tmp_path, lambda weights: weights.update(extra))
    load_engine(EngineConfig(model=str(tmp_path), kv_cache_tokens=64))
