"""`forebay roi`: exit status, outputs, wrong input, and how fast it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_operator.cli.roi import main
from forebay_operator.roi.steps import OPTIMIZATIONS
from tests.smollm2 import smollm2_gguf

ROOT = Path(__file__).parents[3]
SITUATION = ["--requests-per-day", "5000000", "--gpus", "32", "--utilization", "20", "--gpu-price", "4"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_the_text_shows_the_bill_every_step_and_the_saving(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, *SITUATION)
    assert "h100-80gb at 4.00 USD" in text
    assert "93,440" in text  # 32 x 4 x 730
    for index, step in enumerate(OPTIMIZATIONS, 1):
        assert f"\n{index}. {step.name}" in text
        assert f"\n  {index}. {step.name}: " in text
    assert "from 32 GPUs and 93,440 USD a month to" in text
    assert max(map(len, text.splitlines())) <= 118


def test_what_was_not_given_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    bare = " ".join(answer(capsys).split())
    assert "not given, so examples: --requests-per-day 1000000, --prompt-tokens 1024, --output-tokens 256" in bare
    assert "served one at a time" in bare
    given = ["--prompt-tokens", "9", "--output-tokens", "9", "--model", "Qwen/Qwen3-8B"]
    assert "not given" not in answer(capsys, *SITUATION, *given)


def test_json_has_every_row_with_its_assumption_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(answer(capsys, *SITUATION, "-o", "json"))
    assert data["inputs"] == {
        "requestsPerDay": 5_000_000,
        "promptTokens": 1024,
        "outputTokens": 256,
        "utilizationPercent": 20,
        "targetUtilizationPercent": 60,
        "gpuPricePerHourUSD": 4,
        "gpus": 32,
        "prefixHitPercent": 30,
        "acceptancePercent": 60,
    }
    today, *steps = data["rows"]
    assert (today["gpus"], today["monthlyCostUSD"], today["monthlySavingUSD"]) == (32, 93_440, 0)
    assert [row["key"] for row in steps] == [step.key for step in OPTIMIZATIONS]
    for row in steps:
        assert row["assumes"]
        assert row["source"]
        assert row["monthlySavingUSD"] == round(93_440 - row["monthlyCostUSD"], 2)
        assert row["costPerMillionTokensUSD"] > 0


def test_a_price_that_is_not_given_is_the_middle_of_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    """h100-80gb: 1.90 to 7.00."""
    assert json.loads(answer(capsys, "-o", "json"))["inputs"]["gpuPricePerHourUSD"] == 4.45


def test_no_requests_have_no_price_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(answer(capsys, "--requests-per-day", "0", "--gpus", "4", "-o", "json"))
    assert {row["costPerMillionTokensUSD"] for row in data["rows"]} == {None}
    assert "Without requests one replica stays ready." in answer(capsys, "--requests-per-day", "0", "--gpus", "4")


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("4000", "The GPUs do other work as well"),
        ("520", "requests are served one at a time"),
        ("32", "a part of what follows is in use already"),
        ("3", "more than this arithmetic expects"),
    ],
)
def test_todays_gpus_are_compared_with_the_arithmetic(gpus: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in " ".join(answer(capsys, *SITUATION, "--gpus", gpus).split())


def test_a_load_that_needs_more_gpus_is_not_called_a_saving(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "--requests-per-day", "1e9", "--gpus", "1", "--gpu-price", "1")
    assert "costs " in text
    assert " USD more a month" in text
    assert "more than this arithmetic expects" in " ".join(text.split())


def test_a_model_of_this_machine_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "--model", str(smollm2_gguf()), "--accelerator", "t4-16gb", "--prompt-tokens", "100")
    assert text.startswith(smollm2_gguf().name)
    assert "fp16" in text


def test_a_model_that_does_not_fit_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "deepseek-ai/DeepSeek-V3", "--accelerator", "t4-16gb"]) == 1
    check_one_line(capsys.readouterr().err, "DeepSeek-V3", "t4-16gb", "forebay plan")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--requests-per-day", "-1"], ("--requests-per-day", "from 0")),
        (["--requests-per-day", "nan"], ("--requests-per-day", "nan")),
        (["--requests-per-day", "inf"], ("--requests-per-day", "inf")),
        (["--requests-per-day", "1e40"], ("--requests-per-day", "1,000,000,000,000,000")),
        (["--utilization", "0"], ("--utilization", "from 1 to 100")),
        (["--utilization", "120"], ("--utilization", "120")),
        (["--prompt-tokens", "0"], ("--prompt-tokens", "0")),
        (["--prompt-tokens", "200000"], ("--prompt-tokens", "131,072 positions")),
        (["--gpu-price", "-2"], ("--gpu-price", "-2")),
        (["--gpus", "0"], ("--gpus", "0")),
        (["--accelerator", "h100"], ("--accelerator", "'h100'", "h100-80gb")),
        (["--accelerator", "cpu"], ("--accelerator", "'cpu'", "not a GPU")),
        (["--model", "nobody/nothing"], ("--model", "'nobody/nothing'", "catalogue")),
        (["--html", "/no/such/folder/roi.html"], ("--html", "/no/such/folder/roi.html", "No such file")),
    ],
)
def test_wrong_input_ends_with_2_and_one_line(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    check_one_line(capsys.readouterr().err, *words)


@pytest.mark.parametrize("arguments", [["--gpus", "2.5"], ["--utilization", "much"], ["--output-tokens", "-3"]])
def test_what_is_no_number_is_refused_by_the_parser(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_a_config_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text("just text")
    assert main(["--model", str(path)]) == 2
    check_one_line(capsys.readouterr().err, "config.json", "not JSON")


@pytest.mark.parametrize("arguments", [[], ["--html", "roi.html"]])
def test_it_answers_without_heavy_libraries(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        f"sys.path[:0] = [{str(ROOT / 'operator')!r}]\n"
        "from forebay_operator.cli.roi import main\n"
        f"status = main({arguments!r})\n"
        "heavy = {name.split('.')[0] for name in sys.modules} & {'torch', 'kopf', 'kubernetes', 'numpy', 'pydantic'}\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_one_line(text: str, *words: str) -> None:
    assert text.endswith("\n")
    assert text.count("\n") == 1
    for word in words:
        assert word in text
