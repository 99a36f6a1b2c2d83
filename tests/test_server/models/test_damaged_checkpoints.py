"""Damaged, missing and unsupported model files: each gives its exit code and names the file and the fault."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from forebay_server.config import EngineConfig
from forebay_server.engine.engine import load_engine
from forebay_server.errors import ExitCode, StartupError
from tests.test_server.models.tiny_llama import save_tiny_gguf, save_tiny_llama


def startup_error(model: Path, **options: Any) -> StartupError:
    with pytest.raises(StartupError) as caught:
        load_engine(EngineConfig(model=str(model), **options))
    return caught.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_llama(tmp_path / "folder")


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return save_tiny_gguf(tmp_path / "model.gguf")


def change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


# ---- nothing there ----


@pytest.mark.parametrize("name", ["missing", "missing.gguf"])
def test_model_that_does_not_exist(tmp_path: Path, name: str) -> None:
    error = startup_error(tmp_path / name)
    assert error.exit_code == ExitCode.MODEL_NOT_FOUND
    assert name in error.message


def test_folder_without_a_model(tmp_path: Path) -> None:
    assert startup_error(tmp_path).exit_code == ExitCode.MODEL_NOT_FOUND


def test_folder_with_two_gguf_files(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        save_tiny_gguf(tmp_path / name)
    error = startup_error(tmp_path)
    assert error.exit_code == ExitCode.MODEL_NOT_FOUND
    assert "a.gguf, b.gguf" in error.message


def test_folder_with_a_configuration_and_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    error = startup_error(folder)
    assert error.exit_code == ExitCode.MODEL_NOT_FOUND
    assert "no safetensors file" in error.message


# ---- GGUF ----


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"this is a text, not a model, whatever it is called", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "promises"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "cut short inside the header"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture is missing"),
    ],
)
def test_file_that_is_no_gguf(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    error = startup_error(file)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert message in error.message
    assert str(file) in error.message


def test_gguf_cut_at_any_length_is_found_before_anything_is_loaded(gguf_file: Path) -> None:
    whole = gguf_file.read_bytes()
    for length in [*range(0, 3000, 61), len(whole) // 2, len(whole) - 1]:
        gguf_file.write_bytes(whole[:length])
        error = startup_error(gguf_file)
        assert error.exit_code == ExitCode.CORRUPT_WEIGHTS, f"at {length}: {error.message}"
        assert str(gguf_file) in error.message


def test_gguf_with_random_bytes_in_the_header_never_ends_in_a_traceback(gguf_file: Path) -> None:
    whole = gguf_file.read_bytes()
    for position in range(4, 1200, 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        gguf_file.write_bytes(damaged)
        try:
            load_engine(EngineConfig(model=str(gguf_file), kv_cache_tokens=64))
        except StartupError as error:
            assert error.exit_code in (ExitCode.CORRUPT_WEIGHTS, ExitCode.BAD_CONFIGURATION)  # noqa: PT017


def test_gguf_of_another_architecture(gguf_file: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes().replace(b"llama", b"mamba"))
    error = startup_error(gguf_file)
    assert error.exit_code == ExitCode.BAD_CONFIGURATION
    assert "'mamba'" in error.message


def test_gguf_without_one_tensor(gguf_file: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes().replace(b"blk.1.attn_q.weight", b"blk.1.other.weightt"))
    error = startup_error(gguf_file)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert "model.layers.1.self_attn.q_proj.weight is missing" in error.message


# ---- safetensors ----


def test_safetensors_cut_at_any_length(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        error = startup_error(folder)
        assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
        assert str(file) in error.message


def test_text_that_is_called_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n" * 9)
    assert startup_error(folder).exit_code == ExitCode.CORRUPT_WEIGHTS


def test_weight_that_is_missing(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    error = startup_error(folder)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert "model.layers.1.mlp.up_proj.weight is missing" in error.message


def test_weight_of_the_wrong_shape(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.norm.weight": weights["model.norm.weight"][:-1]}))
    error = startup_error(folder)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert "model.norm.weight has the shape (63,); the model needs (64,)" in error.message


def test_weight_that_has_no_place(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_norm.weight"
    change_weights(folder, lambda weights: weights.update({name: weights["model.norm.weight"] + 0}))
    error = startup_error(folder)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert name in error.message


def test_index_that_names_a_missing_file(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "three", num_files=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    error = startup_error(folder)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert "model-00002-of-00003.safetensors" in error.message


def test_index_that_leads_out_of_the_folder(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "three", num_files=3)
    change_json(folder / "model.safetensors.index.json", weight_map={"model.norm.weight": "../../etc/passwd"})
    assert startup_error(folder).exit_code == ExitCode.CORRUPT_WEIGHTS


# ---- config.json ----


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "64"),
        ("hidden_size", None),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", True),
        ("num_attention_heads", -4),
        ("num_attention_heads", 3),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", 0),
        ("rope_theta", [1]),
        ("rope_scaling", "llama3"),
        ("vocab_size", 1 << 40),
        ("tie_word_embeddings", "yes"),
        ("eos_token_id", 5000),
        ("eos_token_id", ["</s>"]),
        ("architectures", []),
    ],
)
def test_impossible_value_names_the_key_and_the_file(folder: Path, key: str, value: object) -> None:
    change_json(folder / "config.json", **{key: value})
    error = startup_error(folder)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert str(folder / "config.json") in error.message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hidden_size": NaN}', "\0\1", "[" * 100_000])
def test_configuration_that_is_no_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    error = startup_error(folder)
    assert error.exit_code == ExitCode.CORRUPT_WEIGHTS
    assert "config.json" in error.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 2.0}}, "mrope"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
    ],
)
def test_model_that_is_sound_but_not_supported(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_json(folder / "config.json", **changes)
    error = startup_error(folder)
    assert error.exit_code == ExitCode.BAD_CONFIGURATION
    assert message in error.message


# ---- flags ----


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "fp8"},
        {"kv_cache_dtype": "fp8"},
        {"tensor_parallel_size": 3},
        {"pipeline_parallel_size": 3},
        {"max_model_len": 513},
        {"max_num_seqs": 0},
        {"block_size": 12},
        {"kv_cache_tokens": 0},
    ],
)
def test_flag_that_cannot_be_honoured_is_refused(folder: Path, options: dict[str, Any]) -> None:
    assert startup_error(folder, **options).exit_code == ExitCode.BAD_CONFIGURATION


def test_progress_is_told_in_bytes_of_the_file(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    load_engine(EngineConfig(model=str(folder), kv_cache_tokens=64), lambda done, total: told.append((done, total)))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 100_000
    assert told == sorted(told)
    assert len(told) > 10
