"""`forebay inspect`: facts as JSON, reasons and exit codes of the contract, and the termination message."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_operator.catalogue.models import known_model_names
from forebay_operator.cli.inspect import main
from forebay_operator.facts import FactsError, ModelFacts
from forebay_operator.facts.inspect_model import inspect_model
from tests.smollm2 import smollm2_gguf
from tests.test_operator.facts.gguf_files import write_gguf
from tests.test_operator.planner.questions import facts_of

ROOT = Path(__file__).parents[3]


@pytest.mark.model
def test_facts_are_printed_as_one_small_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(smollm2_gguf())]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert len(text) <= 4096
    assert ModelFacts.from_json(text).num_parameters == 134_515_008


@pytest.mark.model
def test_the_text_says_what_the_file_and_the_engine_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(smollm2_gguf().parent), "--text"]) == 0
    text = capsys.readouterr().out
    assert "96,576,768 bytes" in text
    assert "269,030,016 bytes in 16 bits (Q4_1 is dequantized while loading)" in text
    assert "23,040 bytes a token" in text


@pytest.mark.parametrize("name", known_model_names())
def test_facts_survive_their_json(name: str) -> None:
    assert ModelFacts.from_json(facts_of(name).to_json()) == facts_of(name)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"tensors": 5}', '{"tensors": [], "kv_layers": [], "checkpoint": {}}', '{"x": 1}']
)
def test_broken_facts_are_an_error(text: str) -> None:
    with pytest.raises(FactsError, match="model facts"):
        ModelFacts.from_json(text)


def fails(model: Path, log: Path) -> tuple[int, dict[str, str]]:
    status = main(["--model", str(model), "--termination-log", str(log)])
    return status, json.loads(log.read_text())


def test_nothing_there(tmp_path: Path) -> None:
    status, error = fails(tmp_path / "no-model", tmp_path / "log")
    assert (status, error["reason"]) == (11, "ModelNotFound")
    assert "no-model" in error["message"]


def test_an_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    status, error = fails(folder, tmp_path / "log")
    assert (status, error["reason"]) == (11, "ModelNotFound")
    assert "config.json" in error["message"]


def test_a_damaged_file(tmp_path: Path) -> None:
    status, error = fails(write_gguf(tmp_path / "model.gguf", missing_bytes=1), tmp_path / "log")
    assert (status, error["reason"]) == (16, "CorruptModel")
    assert "model.gguf" in error["message"]


def test_a_model_that_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "bert"}')
    status, error = fails(path, tmp_path / "log")
    assert (status, error["reason"]) == (2, "UnsupportedModel")
    assert "bert" in error["message"]


def test_several_files_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.gguf", "b.gguf"):
        write_gguf(folder / name)
    status, error = fails(folder, tmp_path / "log")
    assert status == 2
    assert "a.gguf, b.gguf" in error["message"]


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "model.gguf")

    def refuse(self: Path, *_: object) -> object:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FactsError) as caught:
        inspect_model(path)
    assert caught.value.exit_code == 12
    assert "model.gguf" in caught.value.message


def test_facts_go_to_the_termination_log_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    assert main(["--model", str(write_gguf(tmp_path / "model.gguf")), "--termination-log", str(log)]) == 0
    assert log.read_text() == capsys.readouterr().out.rstrip("\n")


def test_a_log_that_cannot_be_written_is_bad_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "no-folder" / "log"
    assert main(["--model", str(write_gguf(tmp_path / "model.gguf")), "--termination-log", str(log)]) == 2
    assert "no-folder" in capsys.readouterr().err


def test_it_needs_nothing_heavy(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    program = (
        "import sys\n"
        "from forebay_operator.cli.inspect import main\n"
        f"status = main(['--model', {str(path)!r}])\n"
        "heavy = {name.split('.')[0] for name in sys.modules} & {'torch', 'kopf', 'kubernetes', 'numpy', 'pydantic'}\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "operator", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
