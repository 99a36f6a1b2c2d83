"""GGUF headers: sizes, damage, and the facts that follow; compared with the format's own package."""

from pathlib import Path
from typing import Any

import gguf
import pytest

from forebay_operator.facts import FactsError
from forebay_operator.facts.gguf_facts import read_gguf_facts
from forebay_operator.facts.gguf_header import BLOCKS, ArrayLength, read_gguf_header
from forebay_operator.facts.inspect_model import facts_of_config
from tests.smollm2 import smollm2_gguf
from tests.test_operator.facts.gguf_files import LLAMA, LLAMA_TENSORS, Value, write_gguf

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
"""What `LLAMA` says, in the words of config.json."""


def test_types_have_the_sizes_of_the_reference() -> None:
    for number, (name, block, block_bytes) in BLOCKS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (block, block_bytes) or name == "Q8_1"  # only used inside of kernels


@pytest.mark.model
def test_the_header_of_a_real_file_equals_the_reference() -> None:
    path = smollm2_gguf()
    header, reference = read_gguf_header(path), gguf.GGUFReader(path)
    assert {name: tensor.num_elements for name, tensor in header.tensors.items()} == {
        tensor.name: int(tensor.n_elements) for tensor in reference.tensors
    }
    assert sum(tensor.num_bytes for tensor in header.tensors.values()) == sum(
        int(tensor.n_bytes) for tensor in reference.tensors
    )
    assert header.metadata["llama.block_count"] == 30
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayLength(49152)


@pytest.mark.model
def test_facts_of_a_real_file() -> None:
    facts = read_gguf_facts(smollm2_gguf())
    assert facts.num_parameters == facts.checkpoint.stored_parameters == 134_515_008
    assert (facts.num_layers, facts.num_heads, facts.num_kv_heads, facts.head_dim) == (30, 9, 3, 64)
    assert facts.tied_embeddings
    assert (facts.checkpoint.format, facts.checkpoint.gguf_type) == ("bf16", "Q4_1")


def test_facts_of_a_small_file(tmp_path: Path) -> None:
    facts = read_gguf_facts(write_gguf(tmp_path / "model.gguf"))
    assert facts.num_parameters == facts.checkpoint.stored_parameters
    assert facts.vocab_size == 256
    assert facts.checkpoint.gguf_type == "F32"
    assert facts.checkpoint.file_bytes == 4 * facts.num_parameters


def test_a_head_of_its_own_is_seen(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tensors={**LLAMA_TENSORS, "output.weight": (64, 256)})
    assert not read_gguf_facts(path).tied_embeddings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"just some text, longer than a header", ("not a GGUF file",)),
        (b"GGUF", ("too few",)),
        (b"GGUF" + b"\x09\0\0\0" + b"\0" * 16, ("version 9",)),
        (b"GGUF" + b"\x03\0\0\0" + b"\xff" * 16, ("too many",)),
        (b"GGUF" + b"\x03\0\0\0" + b"\x01" + b"\0" * 15, ("cut short",)),
    ],
)
def test_what_is_not_a_sound_file_is_called_corrupt(content: bytes, words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(FactsError) as caught:
        read_gguf_header(path)
    assert caught.value.exit_code == 16
    assert str(path) in caught.value.message
    for word in words:
        assert word in caught.value.message


def test_a_file_that_is_one_byte_short_is_called_corrupt(tmp_path: Path) -> None:
    read_gguf_header(write_gguf(tmp_path / "whole.gguf"))
    with pytest.raises(FactsError, match="cut short: its tensors end at byte"):
        read_gguf_header(write_gguf(tmp_path / "short.gguf", missing_bytes=1))


@pytest.mark.parametrize("length", [30, 100, 500, 1000, 3000])
def test_a_header_that_is_cut_anywhere_is_called_corrupt(length: int, tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(FactsError, match="cut short"):
        read_gguf_header(path)


def test_an_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match=r"token_embd\.weight.*type 99"):
        read_gguf_header(write_gguf(tmp_path / "model.gguf", tensor_type=99))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "rwkv"}, ("general.architecture", "rwkv")),
        ({"llama.attention.head_count": 0}, ("llama.attention.head_count", "0")),
        ({"llama.context_length": "long"}, ("llama.context_length", "long")),
    ],
)
def test_wrong_metadata_is_named_by_its_key(
    changes: dict[str, int | str], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(FactsError) as caught:
        read_gguf_facts(write_gguf(tmp_path / "model.gguf", {**LLAMA, **changes}))
    assert caught.value.exit_code == 2
    for word in words:
        assert word in caught.value.message


def test_missing_metadata_is_named_as_the_file_spells_it(tmp_path: Path) -> None:
    metadata = {key: value for key, value in LLAMA.items() if key != "llama.feed_forward_length"}
    with pytest.raises(FactsError, match=r"'llama\.feed_forward_length' is missing"):
        read_gguf_facts(write_gguf(tmp_path / "model.gguf", metadata))


def test_tensors_that_do_not_match_the_metadata_are_called_corrupt(tmp_path: Path) -> None:
    tensors = {name: shape for name, shape in LLAMA_TENSORS.items() if not name.startswith("blk.1.")}
    with pytest.raises(FactsError, match="its metadata describes"):
        read_gguf_facts(write_gguf(tmp_path / "model.gguf", tensors=tensors))


EXPERTS: dict[str, Value] = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
MLA: dict[str, Value] = {
    **EXPERTS,
    "attention.head_count_kv": 4,
    "attention.kv_lora_rank": 24,
    "attention.key_length": 32,
    "attention.value_length": 24,
    "rope.dimension_count": 8,
    "expert_shared_count": 1,
    "leading_dense_block_count": 1,
}
MLA_CONFIG: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
MOE_CONFIG: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_experts": 8}


@pytest.mark.parametrize(
    ("architecture", "metadata", "config", "tensors"),
    [
        ("llama", {"expert_count": 8, "expert_used_count": 2},
         {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}, ["output.weight"]),
        ("qwen2", {}, {"model_type": "qwen2", "tie_word_embeddings": True}, []),
        ("qwen2moe", {**EXPERTS, "expert_shared_feed_forward_length": 48},
         {"model_type": "qwen2_moe", **MOE_CONFIG, "shared_expert_intermediate_size": 48}, ["output.weight"]),
        ("qwen3", {"attention.key_length": 32}, {"model_type": "qwen3", "head_dim": 32}, ["output.weight"]),
        ("qwen3moe", {**EXPERTS, "attention.key_length": 32},
         {"model_type": "qwen3_moe", **MOE_CONFIG, "head_dim": 32}, ["output.weight"]),
        ("gemma2", {"attention.key_length": 32, "attention.sliding_window": 128},
         {"model_type": "gemma2", "head_dim": 32, "sliding_window": 128}, []),
        ("gemma3", {"attention.key_length": 32, "attention.sliding_window": 128},
         {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 128}, []),
        ("phi3", {}, {"model_type": "phi3"}, ["output.weight"]),
        ("smollm3", {}, {"model_type": "smollm3"}, []),
        ("gpt-oss", {"expert_count": 8, "expert_used_count": 2, "attention.key_length": 32},
         {"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32},
         ["output.weight"]),
        ("deepseek2", MLA, {"model_type": "deepseek_v2", **MLA_CONFIG}, ["output.weight"]),
        ("deepseek2", {**MLA, "attention.q_lora_rank": 40, "attention.key_length": 32, "attention.key_length_mla": 32},
         {"model_type": "deepseek_v3", **MLA_CONFIG, "q_lora_rank": 40}, ["output.weight", "blk.1.exp_probs_b.bias"]),
    ],
)  # fmt: skip
def test_a_header_says_the_same_as_config_json(
    architecture: str, metadata: dict[str, Value], config: dict[str, Any], tensors: list[str], tmp_path: Path
) -> None:
    expected = facts_of_config({**CONFIG, **config}, "config.json")
    renamed = {key.replace("llama.", f"{architecture}."): value for key, value in LLAMA.items()}
    keys = {f"{architecture}.{key}": value for key, value in metadata.items()}
    shapes = dict.fromkeys(tensors, (1,)) | {"everything.else": (expected.num_parameters - len(tensors),)}
    path = write_gguf(tmp_path / "model.gguf", {**renamed, "general.architecture": architecture, **keys}, shapes)
    facts = read_gguf_facts(path)
    assert facts.tensors == expected.tensors
    assert facts.kv_layers == expected.kv_layers
    assert (facts.head_dim, facts.max_positions) == (expected.head_dim, expected.max_positions)


def test_a_vocabulary_of_a_quarter_million_tokens_is_skipped_quickly(tmp_path: Path) -> None:
    tokens = [f"token{index}" for index in range(262_144)]
    metadata = {**LLAMA, "tokenizer.ggml.tokens": tokens}
    header = read_gguf_header(write_gguf(tmp_path / "model.gguf", metadata))
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayLength(262_144)
