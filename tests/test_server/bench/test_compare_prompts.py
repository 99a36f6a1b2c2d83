"""The comparison's prompts, and the quality beside its speeds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compare_peers
from benchmarks.peers import quality
from benchmarks.peers.prompts import Prompts, read_texts

from forebay_server.evaluation.prompts import PromptFileError
from tests.smollm2 import smollm2_gguf


def check(name: str, limit: str, value: float, *, passed: bool) -> dict[str, Any]:
    return {"name": name, "limit": limit, "passed": passed, "measured": {"value": value, "low": 0.0, "high": 1.0}}


MEASURED = {
    "candidate": "int8",
    "baseline": "bf16",
    "summary": {"num_prompts": 3, "num_tokens": 1234},
    "checks": [
        check("KL divergence, mean", "<= 0.02", 0.0123, passed=True),
        check("perplexity increase", "<= 2.0%", 0.031, passed=False),
    ],
    "passed": False,
}


def test_random_prompts_depend_on_the_seed_alone() -> None:
    first, again, other = (Prompts(seed, 5, 100, None) for seed in (1, 1, 2))
    prompts = first.take(3)
    assert prompts == again.take(3) != other.take(3)
    assert [len(prompt) for prompt in prompts] == [5, 5, 5] == [first.longest] * 3
    assert all(0 <= token < 100 for prompt in prompts for token in prompt)
    assert prompts[0] != prompts[1]


def test_texts_come_in_turn_cut_and_none_twice() -> None:
    prompts = Prompts(0, 4, 10**9, [[1, 2, 3, 4, 5], [6]])
    given = prompts.take(5)
    assert [prompt[1:] for prompt in given] == [[1, 2, 3], [6], [1, 2, 3], [6], [1, 2, 3]]
    assert len({prompt[0] for prompt in given}) == 5
    assert prompts.longest == 4


@pytest.mark.parametrize("texts", [None, [[1, 2], [3, 4, 5, 6]]])
def test_the_two_prompts_that_decoding_is_told_from_are_equally_long(texts: list[list[int]] | None) -> None:
    prompts = Prompts(0, 8, 10**9, texts)
    for _ in range(3):
        (first,), (second,) = prompts.pair()
        assert len(first) == len(second)
        assert first[0] != second[0]


def test_texts_are_read_as_forebay_eval_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '"Hello there"\n{"messages": [{"role": "user", "content": "Hi"}]}\n{"prompt_token_ids": [5, 6, 7]}\n'
    )
    plain, chat, ids = read_texts(str(file), smollm2_gguf(), 20)
    assert len(plain) == 2
    assert len(chat) > 5
    assert ids == [5, 6, 7]
    with pytest.raises(PromptFileError, match="absent"):
        read_texts(str(tmp_path / "absent.jsonl"), smollm2_gguf(), 20)


def test_quality_is_shown_beside_its_targets() -> None:
    head, kl, perplexity = quality.render(MEASURED).splitlines()
    assert "int8 against bf16: 3 prompts, 1,234 tokens" in head
    assert kl.split() == ["KL", "divergence,", "mean", "<=", "0.02", "0.0123", "met,", "[0.0000,", "1.0000]"]
    assert "3.10%  MISSED, [0.00%, 100.00%]" in perplexity


@pytest.mark.parametrize("code", [11, 1])
def test_quality_that_was_not_measured_says_why(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[0] == sys.executable
        return subprocess.CompletedProcess(command, code, "", "a line\nforebay eval: ModelNotFound: nowhere\n")

    monkeypatch.setattr(subprocess, "run", run)
    found = quality.evaluate(Path("nowhere"), None)
    assert quality.render(found) == "quality: not measured: forebay eval: ModelNotFound: nowhere"


@pytest.mark.parametrize(("found", "code"), [(MEASURED, 1), ({"error": "x"}, 1), ({**MEASURED, "passed": True}, 0)])
def test_poor_quality_is_a_target_missed(
    found: dict[str, Any],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[tuple[Path, str | None]] = []

    def evaluate(model: Path, prompts: str | None) -> dict[str, Any]:
        asked.append((model, prompts))
        return found

    monkeypatch.setattr(quality, "evaluate", evaluate)
    options = ["--folder", str(tmp_path), "--model", "x.gguf", "--engines", "llama.cpp Q8_0", "--quality"]
    assert compare_peers.main([*options, "-o", "json"]) == code
    assert asked == [(tmp_path / "models" / "x-bf16", None)]
    assert json.loads(capsys.readouterr().out)["quality"] == found


def test_texts_that_cannot_be_read_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / "absent.jsonl")
    assert compare_peers.main(["--model", str(smollm2_gguf()), "--folder", str(tmp_path), "--prompts", absent]) == 2
    assert "absent.jsonl" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare_peers.main(["--shape", "1b", "--quality"])
