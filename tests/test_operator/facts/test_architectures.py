"""Architectures: parameters equal those of transformers' own models, and what is special about each is seen."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forebay_operator.facts import FactsError, KVLayers
from forebay_operator.facts.architectures import FAMILIES
from forebay_operator.facts.inspect_model import facts_of_config

BASE: dict[str, Any] = {
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
MLA: dict[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 48,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 2,
    "n_group": 1,
    "topk_group": 1,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", {"sliding_window": 256}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("qwen2", {"head_dim": 16}),
    ("qwen2_moe", {**EXPERTS, "head_dim": 16, "shared_expert_intermediate_size": 96, "mlp_only_layers": [0]}),
    ("qwen3", {"tie_word_embeddings": True}),
    ("qwen3_moe", {**EXPERTS, "decoder_sparse_step": 2}),
    ("gemma2", {"sliding_window": 256, "tie_word_embeddings": True}),
    ("gemma3_text", {"sliding_window": 256, "tie_word_embeddings": True}),
    ("phi3", {"head_dim": 16, "sliding_window": 256}),
    ("deepseek_v2", MLA),
    ("deepseek_v2", {**MLA, "q_lora_rank": None}),
    ("deepseek_v3", MLA),
    ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128}),
    ("smollm3", {}),
    ("smollm3", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("model_type", "changes"), CONFIGS)
def test_parameters_equal_those_of_transformers(model_type: str, changes: dict[str, Any]) -> None:
    config = {**BASE, **changes}
    reference_config = AutoConfig.for_model(model_type, **config)
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(reference_config)  # type: ignore[no-untyped-call]
    parameters = sum(parameter.numel() for parameter in reference.parameters())
    # DeepSeek-V3's correction bias is stored in the files, but is a buffer there.
    parameters += sum(buffer.numel() for name, buffer in reference.named_buffers() if "correction_bias" in name)
    assert facts_of_config({"model_type": model_type, **config}, "config.json").num_parameters == parameters


def test_every_family_is_compared() -> None:
    assert {model_type for model_type, _ in CONFIGS} | {"gemma3", "mistral3"} == set(FAMILIES)


def kv_layers(model_type: str, **changes: Any) -> tuple[KVLayers, ...]:
    return facts_of_config({**BASE, "model_type": model_type, **changes}, "config.json").kv_layers


@pytest.mark.parametrize(
    ("model_type", "changes", "full", "sliding"),
    [
        ("llama", {"sliding_window": 256}, 6, 0),
        ("mistral", {"sliding_window": 256}, 0, 6),
        ("mistral", {"sliding_window": None}, 6, 0),
        ("mistral", {"sliding_window": 4096}, 6, 0),
        ("qwen2", {"sliding_window": 256}, 6, 0),
        ("qwen2", {"sliding_window": 256, "use_sliding_window": True, "max_window_layers": 4}, 4, 2),
        ("gemma2", {"sliding_window": 256}, 3, 3),
        ("gemma2", {"sliding_window": 256, "num_hidden_layers": 7}, 3, 4),
        ("gemma3_text", {"sliding_window": 256}, 1, 5),
        ("gemma3_text", {"sliding_window": 256, "num_hidden_layers": 8}, 1, 7),
        ("gemma3_text", {"sliding_window": 256, "sliding_window_pattern": 3}, 2, 4),
        (
            "gemma3_text",
            {"sliding_window": 256, "layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 2},
            4,
            2,
        ),
    ],
)
def test_layers_with_a_window_are_counted(model_type: str, changes: dict[str, Any], full: int, sliding: int) -> None:
    counted = {kind.kind: kind.layers for kind in kv_layers(model_type, **changes)}
    assert (counted.get("full", 0), counted.get("sliding", 0)) == (full, sliding)


def test_latent_layers_keep_one_vector() -> None:
    (latent,) = kv_layers("deepseek_v3", **MLA)
    assert (latent.kind, latent.numbers_per_token) == ("latent", 6 * (48 + 8))


def test_gemma3_reads_its_text_part_and_published_defaults() -> None:
    """The 4B's text_config says only what differs from the defaults of its class."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    facts = facts_of_config({"model_type": "gemma3", "text_config": text}, "config.json")
    assert facts.num_parameters == 3_880_263_168  # the card's 4,300,079,472 less vision tower and projector
    assert [(kind.kind, kind.layers) for kind in facts.kv_layers] == [("full", 5), ("sliding", 29)]


@pytest.mark.parametrize(("of_all", "num_heads"), [({}, 1), ({"tie_word_embeddings": True}, 0)])
def test_mistral3_is_its_text_part(of_all: dict[str, Any], num_heads: int) -> None:
    """Whether the head is tied stands outside of the text part, where it stands at all."""
    text = BASE | {"model_type": "mistral"}
    facts = facts_of_config({"model_type": "mistral3", "text_config": text, **of_all}, "config.json")
    tied = facts_of_config(text | {"tie_word_embeddings": True}, "config.json")
    assert facts.num_parameters - tied.num_parameters == num_heads * BASE["vocab_size"] * BASE["hidden_size"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bert"}, ("'model_type'", "'bert'", "llama")),
        ({"num_attention_heads": None}, ("'num_attention_heads'", "missing")),
        ({"hidden_size": 0}, ("'hidden_size'", "0")),
        ({"hidden_size": True}, ("'hidden_size'", "True")),
        ({"hidden_size": 1 << 40}, ("'hidden_size'",)),
        ({"num_key_value_heads": 3}, ("'num_key_value_heads'", "8", "3")),
        ({"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": None}, ("'head_dim'", "6 heads", "128")),
        ({"tie_word_embeddings": "yes"}, ("'tie_word_embeddings'", "'yes'")),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, ("'layer_types'", "1 entries for 6 layers")),
    ],
)
def test_wrong_keys_are_named(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    config = {key: value for key, value in {**BASE, "model_type": "llama", **changes}.items() if value is not None}
    with pytest.raises(FactsError) as caught:
        facts_of_config(config, "config.json")
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    for word in ("config.json", *words):
        assert word in caught.value.message
