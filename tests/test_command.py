"""The `forebay` command: finds its subcommands, says what is wrong, and stays quick."""

import subprocess
import sys

import pytest

from forebay_cli.__main__ import SUBCOMMANDS, main


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in SUBCOMMANDS:
        assert f"\n  {name}" in shown


def test_an_unknown_subcommand_is_named_with_the_ones_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    said = capsys.readouterr().err
    assert "'srve'" in said
    assert "serve" in said


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_subcommand_has_help_with_an_example(name: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "forebay_cli", name, "--help"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert "usage:" in shown
    assert f"forebay {name}" in shown
    assert "example" in shown.lower()


@pytest.mark.parametrize("name", ["plan", "inspect", "roi", "operator", "crds"])
def test_the_operators_subcommands_work_without_torch(name: str) -> None:
    program = (
        f"import sys; sys.modules['torch'] = None; from forebay_cli.__main__ import main;main([{name!r}, '--help'])"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
