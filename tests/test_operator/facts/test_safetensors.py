"""Safetensors: parameters from headers and index, and what an unfinished download looks like."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from forebay_operator.facts import FactsError
from forebay_operator.facts.inspect_model import inspect_model
from forebay_operator.facts.safetensors_header import INDEX_NAME, read_header


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama of two layers as transformers saves it, in several files with an index."""
    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=160,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
        max_position_embeddings=512,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path, max_shard_size="60KB")
    return tmp_path


def test_parameters_agree_exactly_with_the_index(folder: Path) -> None:
    facts = inspect_model(folder)
    index = json.loads((folder / INDEX_NAME).read_text())
    assert facts.num_parameters * 2 == index["metadata"]["total_size"] == facts.checkpoint.file_bytes
    assert facts.checkpoint.stored_parameters == facts.num_parameters
    assert (facts.checkpoint.container, facts.checkpoint.format) == ("safetensors", "bf16")


def test_a_config_alone_gives_the_same_model(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_bytes((folder / "config.json").read_bytes())
    facts = inspect_model(alone)
    assert facts.checkpoint.container == "none"
    assert facts.tensors == inspect_model(folder).tensors


def test_a_missing_file_of_the_index_is_named(folder: Path) -> None:
    victim = sorted(folder.glob("model-*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(FactsError, match=victim.name) as caught:
        inspect_model(folder)
    assert caught.value.exit_code == 11


def test_a_file_cut_short_is_called_corrupt(folder: Path) -> None:
    victim = sorted(folder.glob("model-*.safetensors"))[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(FactsError, match=f"{victim.name}: cut short") as caught:
        inspect_model(folder)
    assert caught.value.exit_code == 16


def test_files_that_hold_too_little_are_called_corrupt(folder: Path) -> None:
    (folder / INDEX_NAME).unlink()
    for path in sorted(folder.glob("model-*.safetensors"))[1:]:
        path.unlink()
    with pytest.raises(FactsError, match=r"parameters, config\.json describes") as caught:
        inspect_model(folder)
    assert caught.value.exit_code == 16


def test_an_index_may_not_lead_out_of_the_folder(folder: Path) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(FactsError, match="not a file name"):
        inspect_model(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 4) + b"text",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 5}',
    ],
)
def test_what_is_not_a_header_is_called_corrupt(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(FactsError, match=r"model\.safetensors") as caught:
        read_header(path)
    assert caught.value.exit_code == 16


def test_headers_have_names_shapes_and_sizes(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.int8)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = {tensor.name: tensor for tensor in read_header(tmp_path / "model.safetensors")}
    assert (found["a"].shape, found["a"].num_elements, found["a"].num_bytes) == ((3, 5), 15, 60)
    assert (found["b"].dtype, found["b"].num_bytes) == ("I8", 7)
