"""`forebay bench kernels`: whose roofline, what is measured, and that without a GPU nothing is said to be."""

import json
from pathlib import Path

import pytest
import torch

from forebay_kernels import dispatch, measurement
from forebay_kernels.bench_command import main
from forebay_kernels.measurement import figures, gpu_of
from forebay_kernels.roofline import GPUS, KERNEL_WORK
from forebay_kernels.shapes import MODEL_SHAPES

SMALL = MODEL_SHAPES[0]
ROTARY = dispatch.implementation("rotary", "cpu")
H200 = next(gpu for gpu in GPUS if gpu.name == "h200-141gb")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "h200-141gb"),
        ("h200", "h200-141gb"),
        ("h200-141gb", "h200-141gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA L40S", "l40s-48gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpus_name_leads_to_its_roofline(name: str, expected: str | None) -> None:
    gpu = gpu_of(name)
    assert (None if gpu is None else gpu.name) == expected


def test_the_share_is_the_floor_over_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "median_seconds", lambda *_: 40e-6)
    (figure,) = figures(["rms_norm"], [SMALL], [8], H200, torch.device("cpu"), 0.01)
    work = KERNEL_WORK["rms_norm"](SMALL, 8)
    assert figure.measured_us == pytest.approx(40)
    assert figure.share == pytest.approx(work.bytes_moved / 4800e9 * 1e6 / 40)
    assert figure.bound_by == "memory"


def test_a_kernel_that_fails_or_is_wrong_is_told_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def implementation(name: str, _: str) -> object:
        if name == "rms_norm":
            return lambda x, *_: x
        if name == "silu_and_mul":
            return lambda *_: torch.empty(1) @ torch.empty(2)
        return ROTARY

    monkeypatch.setattr(measurement, "implementation", implementation)
    found = list(figures(["rms_norm", "silu_and_mul", "rotary"], [SMALL], [2], H200, torch.device("cpu"), 0.001))
    assert [figure.error is None for figure in found] == [False, False, True]
    assert [figure.measured_us is None for figure in found] == [True, True, False]
    assert "AssertionError" in str(found[0].error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_floor_is_printed_and_that_nothing_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernels.json"
    options = ["--device", "h200", "--kernel", "rms_norm", "--num-tokens", "2048", "--json", str(file)]
    assert main(options) == 0
    printed = capsys.readouterr().out
    assert "nothing was measured" in printed
    told = json.loads(file.read_text())
    assert (told["measured"], told["device"], told["roofline"]) == (False, None, "h200-141gb")
    assert [figure["measured_us"] for figure in told["figures"]] == [None]
    assert told["figures"][0]["floor_us"] == pytest.approx((2 * 2048 * 4096 * 2 + 4096 * 2) / 4800e3)


def test_every_kernel_has_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "l40s", "--num-tokens", "64"]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert sorted(rows) == sorted(KERNEL_WORK)


def test_a_gpu_without_known_peaks_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "rtx-9000"]) == 2
    assert "h200-141gb" in capsys.readouterr().err
