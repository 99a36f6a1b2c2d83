"""Quantized checkpoints: each method's configuration, and what it leaves unquantized."""

from typing import Any

import pytest

from forebay_operator.facts import FactsError, ModelFacts
from forebay_operator.facts.inspect_model import facts_of_config

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}


def facts_with(quantization: dict[str, Any], **changes: Any) -> ModelFacts:
    return facts_of_config({**CONFIG, "quantization_config": quantization, **changes}, "config.json")


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}, **more}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ("gptq", 4, 128, 0, False)),
        ({"quant_method": "gptq", "bits": 4, "sym": False, "desc_act": True}, ("gptq", 4, 128, 0, True)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("gptq", 8, -1, 0, False)),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, ("awq", 4, 64, 0, True)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "zero_point": False}, ("awq", 4, 32, 0, False)),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, ("fp8", 0, 0, 0, False)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8-block", 0, 0, 128, False)),
        ({"quant_method": "mxfp4"}, ("mxfp4", 4, 32, 0, False)),
        (compressed({"type": "float", "num_bits": 8, "strategy": "channel"}), ("fp8", 0, 0, 0, False)),
        (compressed({"type": "float", "num_bits": 8, "block_structure": [128, 128]}), ("fp8-block", 0, 0, 128, False)),
        (compressed({"type": "int", "num_bits": 8, "strategy": "channel"}), ("int8", 0, 0, 0, False)),
        (compressed({"type": "int", "num_bits": 8, "group_size": 64}), ("int8", 8, 64, 0, False)),
        (compressed({"type": "int", "num_bits": 4, "group_size": 128}), ("int4", 4, 128, 0, False)),
        (compressed({"type": "int", "num_bits": 4, "group_size": 64, "symmetric": False}), ("int4", 4, 64, 0, True)),
        (compressed({"type": "float", "num_bits": 4, "group_size": 16}), ("nvfp4", 4, 16, 0, False)),
        (compressed({"type": "float", "num_bits": 4, "group_size": 32}), ("mxfp4", 4, 32, 0, False)),
    ],
)
def test_methods(quantization: dict[str, Any], expected: tuple[str, int, int, int, bool]) -> None:
    checkpoint = facts_with(quantization).checkpoint
    assert (
        checkpoint.format,
        checkpoint.bits,
        checkpoint.group_size,
        checkpoint.block,
        checkpoint.zero_points,
    ) == expected


def test_the_older_key_is_read_too() -> None:
    quantization = {"config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}}}
    facts = facts_of_config({**CONFIG, "compression_config": quantization}, "config.json")
    assert facts.checkpoint.format == "fp8"


def test_calibrated_caches_are_seen() -> None:
    scheme = {"type": "float", "num_bits": 8}
    assert facts_with(compressed(scheme, kv_cache_scheme=scheme)).checkpoint.kv_cache_dtype == "fp8"


@pytest.mark.parametrize(
    ("modelopt", "expected"),
    [
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, ("fp8", "fp8")),
        ({"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}, ("nvfp4", "")),
    ],
)
def test_modelopt_has_a_file_of_its_own(modelopt: dict[str, Any], expected: tuple[str, str]) -> None:
    checkpoint = facts_of_config(CONFIG, "config.json", modelopt).checkpoint
    assert (checkpoint.format, checkpoint.kv_cache_dtype) == expected


def quantized_layers(facts: ModelFacts, name: str) -> int:
    return sum(max(group.layers, 1) for group in facts.tensors if group.name == name and group.quantizable)


@pytest.mark.parametrize(
    ("ignore", "name", "layers"),
    [
        ([], "down_proj", 4),
        (["model.layers.1.mlp.down_proj"], "down_proj", 3),
        (["model.layers.1.mlp.down_proj"], "o_proj", 4),
        (["model.layers.1"], "gate_up_proj", 3),
        (["self_attn"], "q_proj", 0),
        (["re:.*k_proj$"], "kv_proj", 0),
        (["re:.*k_proj$"], "q_proj", 4),
        (["model.layers.*.mlp.up_proj"], "gate_up_proj", 0),
        (["layers.1"], "down_proj", 3),
        (["lm_head"], "lm_head", 0),
        ([], "lm_head", 1),
    ],
)
def test_what_is_ignored_stays_in_16_bits(ignore: list[str], name: str, layers: int) -> None:
    facts = facts_with(compressed({"type": "float", "num_bits": 8}, ignore=ignore))
    assert quantized_layers(facts, name) == layers
    assert facts.num_parameters == facts_of_config(CONFIG, "config.json").num_parameters


def test_the_head_is_left_alone_by_methods_that_do() -> None:
    for quantization in ({"quant_method": "gptq", "bits": 4}, {"quant_method": "awq"}, {"quant_method": "fp8"}):
        assert quantized_layers(facts_with(quantization), "lm_head") == 0
    assert quantized_layers(facts_with({"quant_method": "gptq", "bits": 4, "lm_head": True}), "lm_head") == 1


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "bitsandbytes"}, ("'quant_method'", "bitsandbytes", "gptq")),
        ({}, ("'quant_method'", "missing")),
        ({"quant_method": "gptq", "bits": 3}, ("'bits'", "3")),
        ({"quant_method": "awq", "bits": 8}, ("'bits'", "8")),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, ("'weight_block_size'", "64")),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, ("'config_groups'",)),
        (compressed({"type": "int", "num_bits": 2}), ("'num_bits'", "2")),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"type": "int", "num_bits": 8}},
                    "b": {"weights": {"type": "float", "num_bits": 8}},
                },
            },
            ("'config_groups'", "2 schemes"),
        ),
    ],
)
def test_what_is_not_supported_is_named(quantization: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(FactsError) as caught:
        facts_with(quantization)
    assert caught.value.exit_code == 2
    for word in ("config.json quantization_config", *words):
        assert word in caught.value.message
