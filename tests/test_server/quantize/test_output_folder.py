"""The folder that `forebay quantize` makes: whole or not there, however the run ends; refused where it cannot fit."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoTokenizer

from forebay_server.errors import StartupError
from forebay_server.models.model_config import ModelConfig, RopeScaling
from forebay_server.quantize.cli import main
from forebay_server.quantize.model_files import config_values
from forebay_server.quantize.output_folder import check_space, output_bytes, staged
from forebay_server.text.model_text import load_model_text
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model
from forebay_server.weights.quantization import QuantizationOptions
from tests.test_server.models.forward import logits_of
from tests.test_server.models.tiny_llama import save_tiny_gguf, save_tiny_llama
from tests.test_server.text.test_gguf_tokenizers import NORMAL, UNKNOWN, write_header

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
KEEP = QuantizationOptions(mode="auto", kept_kinds=frozenset({"int8", "int4", "fp8"}))
PROMPT = [(11 * index) % 125 + 3 for index in range(24)]


def test_the_folder_appears_when_all_is_written(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    (tmp_path / "deep" / "model.unfinished").mkdir(parents=True)
    (tmp_path / "deep" / "model.unfinished" / "old").touch()
    with staged(target) as folder:
        (folder / "new").touch()
        assert not target.exists()
    assert [file.name for file in target.iterdir()] == ["new"]
    assert [file.name for file in target.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_stays_of_a_run_that_ends_early(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with staged(tmp_path / "model") as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_command_leaves_nothing(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "model", **SIZES)
    slow = (
        "import sys, time; from forebay_server.quantize import run, cli;"
        "run.LayerWalk.advance = lambda *_: time.sleep(60); sys.exit(cli.main(sys.argv[1:]))"
    )
    arguments = ["--model", str(model), "--method", "int8", "--output", str(tmp_path / "new")]
    with subprocess.Popen([sys.executable, "-c", slow, *arguments], stderr=subprocess.DEVNULL) as command:
        unfinished = tmp_path / "new.unfinished"
        deadline = time.monotonic() + 60
        while not unfinished.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert unfinished.exists()
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 128 + signal.SIGTERM
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_room_is_looked_for_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_llama(tmp_path / "model", **SIZES)
    nothing_free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: nothing_free)
    assert main(["--model", str(model), "--method", "int8", "--output", str(tmp_path / "a" / "new")]) == 2
    told = capsys.readouterr().err
    assert "1,000 are free" in told
    assert "loading" not in told
    assert not (tmp_path / "a").exists()
    with pytest.raises(StartupError) as caught:
        check_space(tmp_path / "new", 5000)
    assert (caught.value.need_bytes, caught.value.have_bytes) == (5000, 1000)


def test_the_estimate_is_above_what_is_written(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "model", **SIZES)
    assert main(["--model", str(model), "--method", "int8", "--output", str(tmp_path / "new")]) == 0
    written = sum(file.stat().st_size for file in (tmp_path / "new").iterdir())
    shapes = open_checkpoint(model).shapes
    assert written < output_bytes(shapes, 1.01) < written + (64 << 20)


def gguf_model(folder: Path) -> Path:
    """A tiny model with the smallest tokenizer that GGUF can have."""
    path = save_tiny_gguf(folder / "weights.gguf", **SIZES)
    tokens = ["<unk>", *map(chr, range(33, 126)), *(f"unused {index}" for index in range(34))]
    assert len(tokens) == 128
    merges = ["a b"]
    tokens[tokens.index("unused 0")] = "ab"
    header = write_header(
        folder / "tokenizer.gguf", tokens, [UNKNOWN] + [NORMAL] * 127, model="gpt2", merges=merges, eos_token_id=7
    )
    return _joined(path, header, folder / "model.gguf")


def _joined(weights: Path, tokenizer: Path, target: Path) -> Path:
    """One file with the weights of one and the tokenizer of the other."""
    reader, header = gguf.GGUFReader(weights), gguf.GGUFReader(tokenizer)
    writer = gguf.GGUFWriter(target, "llama")
    fields: dict[str, Any] = {**reader.fields, **header.fields}
    for name, field in fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_a_gguf_file_becomes_a_folder_that_computes_the_same(tmp_path: Path) -> None:
    source = gguf_model(tmp_path)
    target = tmp_path / "folder"
    assert main(["--model", str(source), "--method", "int8", "--output", str(target)]) == 0
    device = torch.device("cpu")
    original = load_model(open_checkpoint(source), torch.float32, device, 1 << 30).model
    quantized = load_model(open_checkpoint(target), torch.float32, device, 1 << 30, options=KEEP).model
    expected, found = (logits_of(one, PROMPT).softmax(-1) for one in (original, quantized))
    assert 0 < (expected * (expected.log() - found.log())).sum(-1).mean() < 0.01
    ours = load_model_text(target).tokenizer
    assert ours.encode("abba") == load_model_text(source).tokenizer.encode("abba")
    theirs = AutoTokenizer.from_pretrained(str(target))
    assert theirs.encode("abba", add_special_tokens=False) == ours.encode("abba", add_special_tokens=False)
    assert json.loads((target / "generation_config.json").read_text())["eos_token_id"] == [7]
    assert not (tmp_path / "folder.unfinished").exists()


class OneGguf:
    """As much of a checkpoint as `config_values` looks at."""

    def __init__(self, config: ModelConfig) -> None:
        self.path, self.config = Path("model.gguf"), config


def config(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "max_position": 512,
        "rope_theta": 1e4,
    }
    return ModelConfig(**values | changes)


def test_scaled_rotary_embeddings_are_told() -> None:
    checkpoint: Any = OneGguf(config(rope_scaling=RopeScaling(kind="linear", factor=4.0)))
    assert config_values(checkpoint)["rope_scaling"]["factor"] == 4.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gemma2"}, "'gemma2'"),
        ({"rope_frequency_factors": (1.0,) * 8}, "rotary factors"),
    ],
)
def test_what_a_folder_cannot_tell_is_refused_with_what_to_do(changes: dict[str, Any], words: str) -> None:
    checkpoint: Any = OneGguf(config(**changes))
    with pytest.raises(StartupError, match=words) as caught:
        config_values(checkpoint)
    assert "Hugging Face folder" in caught.value.message
