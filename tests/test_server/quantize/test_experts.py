"""`forebay quantize` of mixtures of experts: each expert by the inputs that it gets; routers stay as they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.layers.weight_forms import dequantize
from forebay_server.models.decoder import CausalLM
from forebay_server.quantize import cli
from forebay_server.quantize.layer_walk import LayerWalk
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model
from forebay_server.weights.quantization import QuantizationOptions
from tests.test_server.models.forward import CPU, logits_of
from tests.test_server.models.tiny_models import save_tiny
from tests.test_server.quantize.test_quantize import decompressed

KEEP = QuantizationOptions(mode="auto", kept_kinds=frozenset({"int8", "int4", "fp8"}))
PLAIN = QuantizationOptions()
SIZES = {
    "mixtral": {"intermediate_size": 64},
    "qwen2_moe": {"moe_intermediate_size": 64, "intermediate_size": 64, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {"moe_intermediate_size": 64, "intermediate_size": 64},
}
PROMPTS = [
    torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(length)).tolist() for length in (40, 60)
]


def load(folder: Path, options: QuantizationOptions = PLAIN) -> CausalLM:
    return load_model(open_checkpoint(folder), torch.float32, CPU, 1 << 30, options=options).model


def quantized(folder: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli, "_prompts", lambda _: PROMPTS)
    output = folder.with_name(method)
    assert cli.main(["--model", str(folder), "--method", method, "--output", str(output)]) == 0
    return output


def mixtures(model: CausalLM) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


@pytest.mark.parametrize("method", cli.METHODS)
@pytest.mark.parametrize("name", SIZES)
def test_experts_are_quantized_and_routers_are_not(
    name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = save_tiny(tmp_path / "model", name, hidden_size=64, **SIZES[name])
    output = quantized(folder, method, monkeypatch)
    original, result = load(folder), load(output, KEEP)
    for before, after in zip(mixtures(original), mixtures(result), strict=True):
        for one, other in ((before.gate_up, after.gate_up), (before.down, after.down)):
            assert not any(isinstance(weight, torch.Tensor) for weight in other.weights)
            found = torch.cat([dequantize(weight) for weight in other.weights])
            wanted = dequantize(one.weights[0])
            assert 0 < (found - wanted).norm() / wanted.norm() < (0.25 if method in ("gptq", "awq") else 0.04)
        assert torch.equal(dequantize(after.router.weights[0]), dequantize(before.router.weights[0]).bfloat16().float())
    expected, found = (logits_of(model, PROMPTS[0]).softmax(-1) for model in (original, result))
    divergence = (expected * (expected.log() - found.log())).sum(-1).mean()
    assert 0 < divergence < (0.4 if method in ("gptq", "awq") else 0.1)


@pytest.mark.parametrize("method", ["int8", "gptq"])
def test_the_formats_own_library_reads_the_same_experts(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = save_tiny(tmp_path / "model", "qwen3_moe", hidden_size=64, **SIZES["qwen3_moe"])
    output = quantized(folder, method, monkeypatch)
    theirs = decompressed(output)
    last = mixtures(load(output, KEEP))[-1]
    ours = torch.cat([dequantize(weight) for weight in last.down.weights])
    names = [f"model.layers.3.mlp.experts.{expert}.down_proj" for expert in range(last.moe.num_experts)]
    torch.testing.assert_close(torch.cat([theirs[name].float() for name in names]), ours, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("name", SIZES)
def test_the_checkpoint_says_which_layers_are_not_quantized(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = save_tiny(tmp_path / "model", name, hidden_size=64, **SIZES[name])
    output = quantized(folder, "int8", monkeypatch)
    ignored = json.loads((output / "config.json").read_text())["quantization_config"]["ignore"]
    tensors: dict[str, torch.Tensor] = {}
    for file in output.glob("*.safetensors"):
        tensors |= load_file(file)
    plain = {
        key.removesuffix(".weight")
        for key, tensor in tensors.items()
        if tensor.dim() == 2 and key.endswith(".weight") and tensor.dtype == torch.bfloat16
    }
    assert {*ignored} == plain - {"model.embed_tokens"} | {"lm_head"}
    assert sum(key.endswith((".gate", "_gate")) for key in ignored) == len(mixtures(load(folder))) * (
        2 if name == "qwen2_moe" else 1
    )


def test_each_expert_is_measured_by_the_tokens_that_chose_it(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path / "model", "mixtral", hidden_size=64, **SIZES["mixtral"])
    model = load(folder)
    layer: Any = model.layers[0]
    statistics = LayerWalk(model, PROMPTS).statistics(0, layer)
    num_tokens = [statistics[f"mlp.gate_up.{expert}"].num_tokens for expert in range(4)]
    assert sum(num_tokens) == 2 * sum(map(len, PROMPTS)) == 2 * statistics["mlp.router"].num_tokens
    assert [statistics[f"mlp.down.{expert}"].num_tokens for expert in range(4)] == num_tokens
    products = sum(statistics[f"mlp.gate_up.{expert}"].products for expert in range(4))
    torch.testing.assert_close(products, 2 * statistics["mlp.router"].products, rtol=1e-4, atol=1e-3)
    assert "of_expert" not in vars(layer.mlp.gate_up)


def test_gptq_rounds_experts_that_no_prompt_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = save_tiny(tmp_path / "model", "mixtral", hidden_size=64, num_local_experts=8, **SIZES["mixtral"])
    monkeypatch.setattr(cli, "_prompts", lambda _: [[5]])
    output = tmp_path / "gptq"
    assert cli.main(["--model", str(folder), "--method", "gptq", "--output", str(output)]) == 0
    for before, after in zip(mixtures(load(folder)), mixtures(load(output, KEEP)), strict=True):
        found = torch.cat([dequantize(weight) for weight in after.down.weights])
        assert (found - dequantize(before.down.weights[0])).norm() / dequantize(before.down.weights[0]).norm() < 0.25
