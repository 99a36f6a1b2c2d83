"""Quantized checkpoints of every kind: a known matrix comes back bit for bit, and whole models answer the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from forebay_server import LLM, SamplingParams
from forebay_server.layers.weight_forms import PLAIN, dequantize, num_bytes, weight_shape
from forebay_server.models.decoder import CausalLM
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model, target_formats, weight_bytes
from forebay_server.weights.quantization import QuantizationOptions
from tests.test_server.weights import writers
from tests.test_server.weights.writers import Scheme, save_plain_llama, save_quantized_llama

CPU = torch.device("cpu")
SCHEMES = {
    "gptq": writers.gptq(),
    "gptq-act-order": writers.gptq(group_size=64, desc_act=True),
    "gptq-asymmetric": writers.gptq(group_size=128, sym=False),
    "gptq-act-order-asymmetric": writers.gptq(desc_act=True, sym=False),
    "gptq-v2": writers.gptq(sym=False, stored_as="gptq_v2"),
    "gptq-whole-rows": writers.gptq(group_size=-1),
    "gptq-8-bits": writers.gptq(bits=8),
    "gptq-8-bits-asymmetric": writers.gptq(bits=8, sym=False, desc_act=True),
    "awq": writers.awq(),
    "awq-128": writers.awq(group_size=128),
    "int8": writers.compressed_int8(),
    "int8-tensor": writers.compressed_int8(strategy="tensor"),
    "packed": writers.compressed_packed(),
    "packed-asymmetric": writers.compressed_packed(group_size=128, symmetric=False),
    "packed-act-order": writers.compressed_packed(group_size=64, actorder="group"),
    "packed-act-order-asymmetric": writers.compressed_packed(symmetric=False, actorder="group"),
    "packed-static-act-order": writers.compressed_packed(actorder="static"),
    "packed-whole-rows": writers.compressed_packed(group_size=-1, actorder="weight"),
    "packed-8-bits": writers.compressed_packed(bits=8, group_size=64),
    "packed-8-bits-asymmetric": writers.compressed_packed(bits=8, symmetric=False),
    "float8": writers.compressed_fp8(),
    "float8-tensor": writers.compressed_fp8(strategy="tensor"),
    "float8-block": writers.compressed_fp8(strategy="block"),
    "fp8-block": writers.block_fp8(),
}
NOT_HELD = {"gptq-8-bits-asymmetric", "packed-8-bits-asymmetric"}
"""No form of ours has eight bits with zeros: these are rounded again when they are kept in eight bits."""
KEEP = QuantizationOptions(mode="auto", kept_kinds=frozenset({"int8", "int4", "fp8"}))


def load(folder: Path, options: QuantizationOptions) -> CausalLM:
    return load_model(open_checkpoint(folder), torch.float32, CPU, 1 << 30, options=options).model


def layers_of(model: CausalLM) -> list[Any]:
    return list(model.layers)


def weights_of(model: CausalLM) -> dict[str, torch.Tensor]:
    """Every weight of the layers, dequantized, by its name in the checkpoint."""
    found = {}
    for index, layer in enumerate(layers_of(model)):
        for name, linear in (
            ("self_attn.", layer.self_attn.qkv_proj),
            ("self_attn.o_proj", layer.self_attn.o_proj),
            ("mlp.", layer.mlp.gate_up_proj),
            ("mlp.down_proj", layer.mlp.down_proj),
        ):
            whole = torch.cat([dequantize(weight) for weight in linear.weights])
            for part, rows in zip(linear.parts, torch.split(whole, list(linear.parts.values())), strict=True):
                found[f"model.layers.{index}.{name}{part}.weight"] = rows
    return found


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("mode", ["none", "auto"])
def test_every_weight_comes_back_bit_for_bit(tmp_path: Path, name: str, mode: str) -> None:
    meaning = save_quantized_llama(tmp_path, SCHEMES[name])
    model = load(tmp_path, KEEP if mode == "auto" else QuantizationOptions())
    found = weights_of(model)
    assert len(found) == 14
    for weight, values in found.items():
        if mode == "auto" and name in NOT_HELD:
            torch.testing.assert_close(values, meaning[weight], atol=0.04, rtol=0)
        else:
            assert torch.equal(values, meaning[weight]), weight


@pytest.mark.parametrize("name", SCHEMES)
def test_kept_weights_take_the_bytes_that_were_planned(tmp_path: Path, name: str) -> None:
    save_quantized_llama(tmp_path, SCHEMES[name])
    checkpoint = open_checkpoint(tmp_path)
    model = load(tmp_path, KEEP)
    slots = model.slots()
    formats = target_formats(checkpoint, slots, KEEP)
    planned = sum(formats.get(name, PLAIN).num_bytes(slot.shape, torch.float32) for name, slot in slots.items())
    shared = 0  # the order of fused layers is planned for each part and kept once
    for layer in layers_of(model):
        for linear in (layer.self_attn.qkv_proj, layer.mlp.gate_up_proj):
            if len(linear.weights) == 1 and getattr(linear.weights[0], "permutation", None) is not None:
                shared += 4 * weight_shape(linear.weights[0])[1] * (len(linear.parts) - 1)
    assert weight_bytes(model) == planned - shared
    quantized = sum(num_bytes(weight) for layer in layers_of(model) for weight in layer.mlp.down_proj.weights)
    assert quantized < 2 * 256 * 384 * 4 * 0.4


@pytest.mark.parametrize("name", ["gptq-act-order-asymmetric", "awq", "int8", "packed-asymmetric", "fp8-block"])
def test_whole_models_answer_as_their_dequantized_twins(tmp_path: Path, name: str) -> None:
    meaning = save_quantized_llama(tmp_path / "quantized", SCHEMES[name])
    plain = save_plain_llama(tmp_path / "plain", meaning)
    prompts = [[5, 9, 2, 77, 31], [100, 3, 3, 8]]
    sampling = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    answers = [
        [
            answer.token_ids
            for answer in LLM(str(model), dtype="float32", kv_cache_tokens=128).generate(prompts, sampling)
        ]
        for model in (tmp_path / "quantized", plain)
    ]
    assert answers[0] == answers[1]


def test_ignored_layers_are_not_quantized(tmp_path: Path) -> None:
    scheme = writers.compressed_int8(ignore=("mlp.down_proj", "layers.1.self_attn.k_proj"))
    meaning = save_quantized_llama(tmp_path, scheme)
    model = load(tmp_path, KEEP)
    assert all(torch.equal(values, meaning[name]) for name, values in weights_of(model).items())
    first, second = layers_of(model)
    assert isinstance(first.mlp.down_proj.weights[0], torch.Tensor)
    assert not isinstance(first.self_attn.qkv_proj.weights[0], torch.Tensor)
    # parts that differ stay apart, and are multiplied one by one
    assert [isinstance(weight, torch.Tensor) for weight in second.self_attn.qkv_proj.weights] == [False, True, False]


def test_fused_layers_with_other_orders_stay_apart(tmp_path: Path) -> None:
    save_quantized_llama(tmp_path, SCHEMES["gptq-act-order"])
    assert len(layers_of(load(tmp_path, KEEP))[0].self_attn.qkv_proj.weights) == 3


def test_layers_may_have_schemes_of_their_own(tmp_path: Path) -> None:
    """GPTQ's `dynamic`: other bits for some layers, by regular expression."""
    eight = writers.gptq(bits=8)

    def write(rows: int, columns: int, generator: torch.Generator) -> writers.Layer:
        is_down = (rows, columns) == (256, 384)
        return (eight if is_down else SCHEMES["gptq"]).write(rows, columns, generator)

    config = {**SCHEMES["gptq"].config, "dynamic": {r".*\.down_proj$": {"bits": 8}}}
    meaning = save_quantized_llama(tmp_path, Scheme(config, write))
    assert all(torch.equal(values, meaning[name]) for name, values in weights_of(load(tmp_path, KEEP)).items())
