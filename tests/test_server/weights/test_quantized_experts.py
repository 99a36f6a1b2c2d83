"""Experts are quantized like any other layer: while loading, or as the checkpoint has them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay_kernels.reference.moe import fused_moe
from forebay_server import LLM, SamplingParams
from forebay_server.layers.linear import Linear
from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.layers.weight_forms import PLAIN, dequantize
from forebay_server.models.decoder import CausalLM
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model, target_formats, weight_bytes
from forebay_server.weights.quantization import DEQUANTIZED, QuantizationOptions
from tests.test_server.models.forward import CPU, logits_of
from tests.test_server.models.tiny_models import save_tiny
from tests.test_server.weights import writers
from tests.test_server.weights.writers import Scheme

PROMPT = torch.randint(3, 128, (20,), generator=torch.Generator().manual_seed(3)).tolist()
KEEP = QuantizationOptions(mode="auto", kept_kinds=frozenset({"int8", "int4", "fp8"}))
MODES = {
    "int8": QuantizationOptions("int8"),
    "int8-weight-only": QuantizationOptions("int8-weight-only"),
    "int4": QuantizationOptions("int4", always_quantizes_input=True),
    "fp8": QuantizationOptions("fp8"),
}
# Of four experts of 128, two are taken: sizes of whole blocks of 128.
SIZES = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}


def load(folder: Path, options: QuantizationOptions = DEQUANTIZED) -> CausalLM:
    return load_model(open_checkpoint(folder), torch.float32, CPU, 1 << 30, options=options).model


def experts_of(model: CausalLM) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def save_quantized_mixtral(folder: Path, scheme: Scheme) -> Path:
    """Write a tiny Mixtral whose projections are quantized to `quantized`, and its meaning to `plain`."""
    plain, _ = save_tiny(folder / "plain", "mixtral", **SIZES)
    quantized = folder / "quantized"
    quantized.mkdir()
    config = json.loads((plain / "config.json").read_text())
    quantization = dict(scheme.config)
    if "ignore" in quantization:
        quantization["ignore"] = [*quantization["ignore"], "re:.*gate$"]  # routers, as such checkpoints have it
    (quantized / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    generator = torch.Generator().manual_seed(1)
    meaning, stored = load_file(plain / "model.safetensors"), {}
    for name, weight in meaning.items():
        layer = name.removesuffix(".weight")
        if ".experts." not in name and not layer.endswith("_proj"):
            stored[name] = weight
            continue
        written = scheme.write(weight.shape[0], weight.shape[1], generator)
        meaning[name] = written.meaning
        stored |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in written.parts.items()}
    save_file(stored, quantized / "model.safetensors", metadata={"format": "pt"})
    save_file(meaning, plain / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "qwen2_moe"])
def test_experts_are_quantized_while_loading(tmp_path: Path, name: str, mode: str) -> None:
    folder, _ = save_tiny(tmp_path, name, **(SIZES if name == "mixtral" else {"moe_intermediate_size": 64}))
    plain, quantized = load(folder), load(folder, MODES[mode])
    for before, after in zip(experts_of(plain), experts_of(quantized), strict=True):
        for one, other in ((before.gate_up, after.gate_up), (before.down, after.down)):
            assert len(other.weights) == 1
            assert not isinstance(other.weights[0], torch.Tensor)
            difference = dequantize(other.weights[0]) - dequantize(one.weights[0])
            assert 0 < difference.norm() / dequantize(one.weights[0]).norm() < (0.12 if mode == "int4" else 0.04)
        assert isinstance(after.router.weights[0], torch.Tensor)
    linears = [module for module in quantized.modules() if isinstance(module, Linear)]
    for linear in linears:
        linear.quantizes_input = False
    found = logits_of(quantized, PROMPT)
    for linear in linears:
        linear.weights = [dequantize(weight) for weight in linear.weights]
    torch.testing.assert_close(found, logits_of(quantized, PROMPT), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, logits_of(plain, PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_experts_take_the_bytes_that_were_planned(tmp_path: Path, mode: str) -> None:
    folder, _ = save_tiny(tmp_path, "mixtral", **SIZES)
    model = load(folder, MODES[mode])
    slots = model.slots()
    formats = target_formats(open_checkpoint(folder), slots, MODES[mode])
    planned = sum(formats.get(name, PLAIN).num_bytes(slot.shape, torch.float32) for name, slot in slots.items())
    assert weight_bytes(model) == planned
    numbers = 4 * 4 * 3 * 128 * 128
    experts = sum(
        formats[name].num_bytes(slot.shape, torch.float32) for name, slot in slots.items() if "experts" in name
    )
    assert experts < numbers * (0.65 if mode == "int4" else 1.05)


def test_experts_can_be_left_out(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "mixtral", **SIZES)
    for exclude, is_plain in ((("re:.*experts",), [True, True]), (("w2",), [False, True])):
        for experts in experts_of(load(folder, QuantizationOptions("int8", exclude=exclude))):
            assert [isinstance(part.weights[0], torch.Tensor) for part in (experts.gate_up, experts.down)] == is_plain


@pytest.mark.parametrize(
    "scheme",
    [
        writers.gptq(),
        writers.gptq(desc_act=True, sym=False),
        writers.awq(),
        writers.compressed_int8(),
        writers.compressed_packed(symmetric=False),
        writers.compressed_fp8(),
        writers.compressed_fp8(strategy="tensor"),
        writers.block_fp8(),
    ],
    ids=["gptq", "gptq-act-order", "awq", "int8", "packed", "float8", "float8-tensor", "fp8-block"],
)
def test_quantized_experts_of_a_checkpoint_are_kept(tmp_path: Path, scheme: Scheme) -> None:
    folder = save_quantized_mixtral(tmp_path, scheme)
    plain, kept = load(folder / "plain"), load(folder / "quantized", KEEP)
    for before, after in zip(experts_of(plain), experts_of(kept), strict=True):
        for one, other in ((before.gate_up, after.gate_up), (before.down, after.down)):
            meaning = torch.cat([dequantize(weight) for weight in other.weights])
            assert torch.equal(meaning, dequantize(one.weights[0]))
            assert not any(isinstance(weight, torch.Tensor) for weight in other.weights)
    for part in (part for experts in experts_of(kept) for part in (experts.gate_up, experts.down)):
        part.quantizes_input = False
    torch.testing.assert_close(logits_of(load(folder / "quantized"), PROMPT), logits_of(plain, PROMPT))


def test_experts_whose_inputs_have_other_orders_stay_apart(tmp_path: Path) -> None:
    folder = save_quantized_mixtral(tmp_path, writers.gptq(desc_act=True))
    for experts in experts_of(load(folder / "quantized", KEEP)):
        assert [len(part.weights) for part in (experts.gate_up, experts.down)] == [8, 4]
        assert experts.gate_up.stacked() is None


@pytest.mark.parametrize(
    ("scheme", "quantizes_input"),
    [
        (None, False),
        (writers.compressed_int8(), True),
        (writers.compressed_fp8(), True),
        (writers.compressed_fp8(strategy="tensor"), True),
        (writers.block_fp8(), True),
    ],
    ids=["plain", "int8", "float8", "float8-tensor", "fp8-block"],
)
def test_one_kernel_takes_all_experts(tmp_path: Path, scheme: Scheme | None, quantizes_input: bool) -> None:
    """What GPUs do, by the kernel's definition, against one expert after the other."""
    folder = save_quantized_mixtral(tmp_path, scheme or writers.compressed_int8())
    model = load(folder / "plain") if scheme is None else load(folder / "quantized", KEEP)
    for experts in experts_of(model):
        gate_up, down = experts.gate_up.stacked(), experts.down.stacked()
        assert gate_up is not None
        assert down is not None
        assert gate_up.is_like(down)
        assert gate_up.quantizes_input == quantizes_input
        assert gate_up.values.shape == (4, 256, 128)
        x = torch.randn(9, 128, generator=torch.Generator().manual_seed(5))
        ids = torch.arange(18).view(9, 2) % 4
        weights = torch.rand(9, 2, generator=torch.Generator().manual_seed(6))
        fused = fused_moe(
            x, gate_up.values, down.values, ids, weights, gate_up.scales, down.scales, quantizes_input
        )  # fmt: skip
        one_by_one = experts._experts(x, ids, weights)
        # inputs are rounded by token in one, by 64 numbers of it or not at all in the other
        assert (fused - one_by_one).norm() / one_by_one.norm() < (0.06 if quantizes_input else 1e-6)


def test_stacks_of_other_forms_are_not_alike(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "mixtral", **SIZES)
    plain, int8 = load(folder), load(folder, MODES["int8"])
    stacks = [experts_of(model)[0].down.stacked() for model in (plain, int8, load(folder, MODES["int8-weight-only"]))]
    assert all(stack is not None for stack in stacks)
    assert [[one is not None and two is not None and one.is_like(two) for one in stacks] for two in stacks] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_a_model_with_quantized_experts_answers_alike_alone_and_in_company(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "qwen3_moe", moe_intermediate_size=64)
    prompts = [PROMPT[:start] for start in (20, 3, 17, 1)]
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    llm = LLM(str(folder), dtype="float32", quantization="int8", kv_cache_tokens=512)
    together = [answer.token_ids for answer in llm.generate(prompts, params)]
    assert together == [llm.generate([prompt], params)[0].token_ids for prompt in prompts]
