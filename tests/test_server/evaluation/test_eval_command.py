"""`forebay eval` on a small random model: what equals passes, what was damaged fails, and exit codes say so."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay_server.config import EngineConfig
from forebay_server.evaluation.cli import main
from forebay_server.evaluation.scorer import Scorer
from forebay_server.llm import LLM
from forebay_server.sampling_params import SamplingParams
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model
from tests.test_server.models.tiny_llama import save_tiny_llama

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval-model")
    write_tiny_model(folder)
    return save_tiny_llama(folder, vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("".join(json.dumps(f"prompt number {number}, and a few words") + "\n" for number in range(8)))
    return file


def damaged(model: Path, folder: Path, strength: float) -> Path:
    """A copy whose weights have noise."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    noisy = {
        name: weight + strength * weight.std() * torch.randn(weight.shape, generator=generator)
        if weight.ndim > 1
        else weight
        for name, weight in weights.items()
    }
    save_file(noisy, folder / "model.safetensors")
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status = main([*arguments, "-o", "json", "--resamples", "50"])
    return status, json.loads(capsys.readouterr().out)


def test_the_same_weights_pass_with_nothing_to_see(
    model: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = run(capsys, "--model", str(model), "--candidate", "bf16", "--prompts", str(prompts))
    assert status == 0
    assert found["passed"] is True
    assert found["summary"]["kl_mean"]["value"] == pytest.approx(0, abs=1e-9)
    assert found["summary"]["top1_agreement"]["value"] == 1
    assert found["summary"]["num_prompts"] == 8


def test_the_candidate_takes_the_flags_of_quantization(
    model: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", str(model), "--prompts", str(prompts), "--candidate", "int4", "--max-kl", "9")
    _, coarse = run(capsys, *arguments, "--quantization-group-size", "64")
    _, fine = run(capsys, *arguments)
    _, nothing = run(capsys, *arguments, "--quantization-exclude", "re:.*")
    assert coarse["candidate"] == "int4 by 64"
    assert nothing["candidate"] == "int4 by 32 without re:.*"
    assert coarse["summary"]["kl_mean"]["value"] > fine["summary"]["kl_mean"]["value"] > 0
    assert nothing["summary"]["kl_mean"]["value"] == pytest.approx(0, abs=1e-9)


def test_a_damaged_candidate_fails(
    model: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = damaged(model, tmp_path / "damaged", 0.5)
    picture = tmp_path / "eval.png"
    status, found = run(
        capsys,
        *("--model", str(model), "--candidate", "bf16", "--candidate-model", str(other)),
        *("--prompts", str(prompts), "--png", str(picture)),
    )
    assert status == 1
    assert found["passed"] is False
    assert found["summary"]["kl_mean"]["value"] > 0.02
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_thresholds_decide(model: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = damaged(model, tmp_path / "damaged", 0.5)
    generous = ("--max-kl", "100", "--min-top1", "0", "--max-perplexity-increase", "1000000")
    common = ("--model", str(model), "--candidate", "bf16", "--candidate-model", str(other), "--prompts", str(prompts))
    assert main([*common, *generous, "--resamples", "50"]) == 0
    assert "verdict: PASS" in capsys.readouterr().out
    assert main([*common, "--resamples", "50"]) == 1
    shown = capsys.readouterr().out
    assert "verdict: FAIL" in shown
    assert "BROKEN" in shown


def test_logits_are_those_of_the_text_however_it_is_cut(model: Path) -> None:
    token_ids = [(7 * index) % 250 for index in range(70)]
    options: dict[str, Any] = {"model": str(model), "dtype": "float32", "kv_cache_tokens": 512}
    whole = Scorer(EngineConfig(**options)).logits(token_ids)
    parts = Scorer(EngineConfig(**options, max_num_batched_tokens=16)).logits(token_ids)
    assert whole.shape == (69, VOCAB_SIZE)
    torch.testing.assert_close(whole, parts, atol=2e-3, rtol=1e-3)
    scores = LLM(**options).generate([token_ids], SamplingParams(max_tokens=1, prompt_logprobs=0))[0].prompt_logprobs
    assert scores is not None
    logprobs = torch.log_softmax(whole, dim=-1)[range(69), token_ids[1:]]
    assert [one.chosen for one in scores] == pytest.approx(logprobs.tolist(), abs=1e-3)


def test_a_prompt_alone_can_be_scored(model: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", str(model), "--candidate", "fp32", "--prompts", str(prompts))
    _, short = run(capsys, *arguments, "--continuation-tokens", "0")
    _, long = run(capsys, *arguments, "--continuation-tokens", "4")
    assert long["summary"]["num_tokens"] == short["summary"]["num_tokens"] + 4 * 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--candidate", "int7"], "'int7' is none of: bf16"),
        (["--candidate", "none"], "'none' is none of"),
        (["--candidate", "int8", "--continuation-tokens", "-1"], "whole number from 0"),
        (["--candidate", "int8", "--max-kl", "much"], "'much' must be a number"),
        ([], "--candidate"),
    ],
)
def test_bad_command_lines(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--model", "m", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_what_is_not_there_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "/nowhere", "--candidate", "int8"]) == 11
    assert "/nowhere" in capsys.readouterr().err
    assert main(["--model", str(model), "--candidate", "int8", "--prompts", "nothing.jsonl"]) == 2
    assert "nothing.jsonl" in capsys.readouterr().err
