"""`forebay quantize`: what it writes is read back as it was meant, and changes a model as little as promised."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forebay_server.layers.weight_forms import dequantize
from forebay_server.models.decoder import CausalLM
from forebay_server.quantize.cli import METHODS, main
from forebay_server.quantize.folding import folds_of
from forebay_server.quantize.gptq import Gptq
from forebay_server.quantize.layer_walk import LayerWalk
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model
from forebay_server.weights.quantization import QuantizationOptions
from tests.test_server.models.forward import logits_of
from tests.test_server.models.tiny_llama import save_tiny_llama

CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 128}
KEEP = QuantizationOptions(mode="auto", kept_kinds=frozenset({"int8", "int4", "fp8"}))
PROMPT = [(11 * index) % 125 + 3 for index in range(24)]


def load(folder: Path, options: QuantizationOptions = QuantizationOptions()) -> CausalLM:  # noqa: B008
    return load_model(open_checkpoint(folder), torch.float32, CPU, 1 << 30, options=options).model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_llama(tmp_path / "model", **SIZES)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    generator = torch.Generator().manual_seed(1)
    lines = [torch.randint(3, 128, (length,), generator=generator).tolist() for length in (1, 40, 7, 64, 30)]
    file.write_text("\n".join(json.dumps({"prompt_token_ids": line}) for line in lines))
    return file


@pytest.fixture
def run(model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Quantizes the model with a method; its tokenizer is not there, and ids need none."""
    from forebay_server.quantize import cli

    def read(options: Any) -> list[list[int]]:
        return [json.loads(line)["prompt_token_ids"] for line in Path(options.calibration).read_text().splitlines()]

    monkeypatch.setattr(cli, "_prompts", read)

    def quantize(method: str, *more: str) -> Path:
        output = tmp_path / method
        arguments = ["--model", str(model), "--method", method, "--output", str(output), "--calibration", str(prompts)]
        assert main([*arguments, *more]) == 0
        return output

    return quantize


@pytest.mark.parametrize("method", METHODS)
def test_the_quantized_model_is_close_to_the_original(method: str, model: Path, run: Any) -> None:
    original, quantized = load(model), load(run(method), KEEP)
    assert all(not isinstance(layer.mlp.down_proj.weights[0], torch.Tensor) for layer in list[Any](quantized.layers))
    expected, found = (logits_of(one, PROMPT).softmax(-1) for one in (original, quantized))
    divergence = (expected * (expected.log() - found.log())).sum(-1).mean()
    assert divergence < {"int8": 0.01, "smoothquant": 0.01, "fp8": 0.05}.get(method, 0.4)
    assert divergence > 0


def _columns(folder: Path, options: QuantizationOptions) -> dict[str, torch.Tensor]:
    layers = list[Any](load(folder, options).layers)
    return {
        f"model.layers.{index}.mlp.down_proj": dequantize(layer.mlp.down_proj.weights[0])
        for index, layer in enumerate(layers)
    }


@pytest.mark.parametrize("method", METHODS)
def test_the_formats_own_library_reads_the_same_numbers(method: str, run: Any) -> None:
    quantized = run(method)
    ours = _columns(quantized, KEEP)
    theirs = decompressed(quantized)
    assert ours.keys() <= theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name].float(), weight, rtol=0.01, atol=1e-6)


def decompressed(folder: Path) -> dict[str, torch.Tensor]:
    """Every quantized layer as the `compressed-tensors` package dequantizes it."""
    from compressed_tensors.compressors.base import BaseCompressor  # type: ignore[import-untyped]
    from compressed_tensors.quantization import QuantizationConfig  # type: ignore[import-untyped]

    written = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(written)
    scheme = config.config_groups["group_0"]
    compressor = BaseCompressor.load_from_registry(config.format)
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if "_proj." in name:
            layer, _, part = name.rpartition(".")
            layers.setdefault(layer, {})[part] = tensor
    return {name: compressor.decompress(parts, scheme)["weight"] for name, parts in layers.items()}


def test_moving_scale_changes_nothing_that_is_computed(model: Path) -> None:
    loaded = load(model)
    before = logits_of(loaded, PROMPT)
    layer: Any = loaded.layers[0]
    statistics = LayerWalk(loaded, [PROMPT]).statistics(0, layer)
    folds = folds_of(layer, statistics)
    assert len(folds) == 3
    for fold in folds:
        fold.apply(torch.rand(fold.reader.in_features) + 0.5)
    torch.testing.assert_close(logits_of(loaded, PROMPT), before, atol=1e-4, rtol=1e-4)


def test_statistics_are_those_of_the_inputs_that_a_layer_sees(model: Path) -> None:
    loaded = load(model)
    layer: Any = loaded.layers[0]
    statistics = LayerWalk(loaded, [PROMPT, [5]]).statistics(0, layer)["self_attn.qkv_proj"]
    rows = layer.input_layernorm(loaded.embed(torch.tensor([*PROMPT, 5])))
    assert statistics.num_tokens == len(PROMPT) + 1
    torch.testing.assert_close(statistics.largest, rows.abs().amax(0))
    torch.testing.assert_close(statistics.mean, rows.abs().mean(0))
    torch.testing.assert_close(statistics.products, rows.T @ rows)


def test_gptq_makes_good_what_rounding_costs(model: Path) -> None:
    """The outputs for the calibration inputs are nearer than those of the nearest numbers."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=generator)
    x = torch.randn(400, 64, generator=generator) @ torch.randn(64, 64, generator=generator)
    loaded = load(model)
    layer: Any = loaded.layers[0]
    statistics = LayerWalk(loaded, [PROMPT]).statistics(0, layer)["self_attn.qkv_proj"]
    statistics.products = x.T @ x
    nearest = Gptq(32).quantize(weight, _with_products(statistics, torch.eye(64))).meaning
    corrected = Gptq(32).quantize(weight, statistics).meaning
    errors = [(x @ (found - weight).T).square().sum() for found in (corrected, nearest)]
    assert errors[0] < 0.8 * errors[1]


def _with_products(statistics: Any, products: torch.Tensor) -> Any:
    from dataclasses import replace

    return replace(statistics, products=products)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "int8", "--output", "{there}"], "exists already"),
        (["--method", "awq", "--output", "{new}", "--group-size", "128"], "--group-size 128"),
    ],
)
def test_bad_arguments_are_exit_2_and_leave_nothing(
    arguments: list[str], words: str, model: Path, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.format(there=tmp_path, new=tmp_path / "new") for argument in arguments]
    prompts = str(tmp_path / "prompts.jsonl")
    assert main(["--model", str(model), "--calibration", prompts, *filled]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_model_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "model.gguf", "--method", "int8", "--output", str(tmp_path / "new")]) == 11
    assert "model.gguf: no such file" in capsys.readouterr().err
