"""The measure of a start: real servers, small models."""

import json
from pathlib import Path

import pytest
from benchmarks.start_up import main

from tests.fakes.tiny_real import write_tiny_real_model


def test_starts_are_measured_and_held_against_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_real_model(tmp_path / "model")
    result = tmp_path / "result.json"
    arguments = ["--model", str(model), "--repeats", "2", "--json", str(result)]
    assert main([*arguments, "--serve=--kv-cache-tokens=1024"]) == 0
    runs = json.loads(result.read_text())
    assert len(runs) == 2
    for run in runs:
        assert 0 < run["listening_seconds"] <= run["first_token_seconds"]
        assert run["cpu_seconds"] > 0.5
    assert "median" in capsys.readouterr().out
    assert main(["--model", str(model), "--repeats", "1", "--limit", "0.001"]) == 1


def test_a_server_that_does_not_start_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path / "none"), "--repeats", "1"]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
