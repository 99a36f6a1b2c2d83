"""`forebay quantize --resume`: what was done stays, the run goes on from there, and its result is the same."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forebay_server.quantize import cli
from forebay_server.quantize.kept_run import FILE
from forebay_server.quantize.layer_walk import LayerWalk
from tests.test_server.models.tiny_llama import save_tiny_llama

PROMPTS = [
    torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(length)).tolist() for length in (1, 40)
]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli, "_prompts", lambda _: PROMPTS)
    return save_tiny_llama(tmp_path / "model", hidden_size=64, intermediate_size=128, num_hidden_layers=4)


def quantize(model: Path, output: Path, method: str = "gptq", *more: str) -> int:
    return cli.main(["--model", str(model), "--method", method, "--output", str(output), *more])


def interrupt(monkeypatch: pytest.MonkeyPatch, at_layer: int) -> list[int]:
    """Let a run end before a layer; the layers whose turn came are noted."""
    advance, seen = LayerWalk.advance, list[int]()

    def ending(self: LayerWalk, index: int, layer: Any) -> None:
        seen.append(index)
        if index == at_layer:
            raise KeyboardInterrupt
        advance(self, index, layer)

    monkeypatch.setattr(LayerWalk, "advance", ending)
    return seen


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("method", ["int8", "smoothquant", "gptq"])
def test_a_run_goes_on_where_it_ended(
    method: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize(model, tmp_path / "whole", method) == 0
    told = capsys.readouterr().out.split(":")[1:]
    output, unfinished = tmp_path / "output", tmp_path / "output.unfinished"
    with monkeypatch.context() as patch:
        assert interrupt(patch, 2) == []
        assert quantize(model, output, method, "--resume") == 130
    assert "layers that are done are kept; the same command goes on" in capsys.readouterr().err
    assert not output.exists()
    with monkeypatch.context() as patch:
        seen = interrupt(patch, -1)
        assert quantize(model, output, method, "--resume") == 0
    assert seen == [2, 3]
    assert capsys.readouterr().out.split(":")[1:] == told
    assert not unfinished.exists()
    assert not (output / FILE).exists()
    whole, resumed = tensors(tmp_path / "whole"), tensors(output)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_what_was_kept_is_not_lost_by_a_run_of_another_kind(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, unfinished = tmp_path / "output", tmp_path / "output.unfinished"
    with monkeypatch.context() as patch:
        interrupt(patch, 1)
        quantize(model, output, "gptq", "--resume")
    kept = sorted(file.name for file in unfinished.iterdir())
    for arguments, words in (
        (["gptq"], "go on with it by --resume"),
        (["awq", "--resume"], "another model, method, group size or calibration"),
        (["gptq", "--resume", "--group-size", "32"], "another model, method, group size or calibration"),
    ):
        assert quantize(model, output, *arguments) == 2
        assert words in capsys.readouterr().err
    monkeypatch.setattr(cli, "_prompts", lambda _: PROMPTS[:1])
    assert quantize(model, output, "gptq", "--resume") == 2
    assert sorted(file.name for file in unfinished.iterdir()) == kept
    shutil.rmtree(unfinished)
    assert quantize(model, output, "gptq") == 0


def test_an_end_before_the_first_layer_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 0)
    assert quantize(model, tmp_path / "output", "int8", "--resume") == 130
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_file_that_was_written_without_its_progress_is_written_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quantize(model, tmp_path / "whole", "int8") == 0
    output, unfinished = tmp_path / "output", tmp_path / "output.unfinished"
    with monkeypatch.context() as patch:
        interrupt(patch, 1)
        quantize(model, output, "int8", "--resume")
    (unfinished / "model-00002.safetensors").write_bytes(b"half")
    assert quantize(model, output, "int8", "--resume") == 0
    whole, resumed = tensors(tmp_path / "whole"), tensors(output)
    assert whole.keys() == resumed.keys()
