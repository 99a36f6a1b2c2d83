import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay_kernels.dispatch import KERNELS
from forebay_kernels.shapes import MODEL_SHAPES

BENCHMARKS = Path(__file__).parents[2] / "kernels" / "benchmarks"

# For 10 tokens of SmolLM2-135M in bfloat16.
BYTES_MOVED = {
    "rms_norm": 2 * 10 * 576 * 2 + 576 * 2,
    "add_rms_norm": 4 * 10 * 576 * 2 + 576 * 2,
    "rotary": 2 * 10 * (9 + 3) * 64 * 2 + 10 * 8 + 10 * 64 * 4,
    "write_kv_cache": 2 * 10 * 9 * 64 * 2 + 5 * 10 * 3 * 64 * 2 + 10 * (8 + 8) + 10 * 64 * 4,
    "prefill_attention": 2 * 10 * (9 + 3) * 64 * 2,
    "decode_attention": 2 * 10 * 9 * 64 * 2 + 2 * 10 * 1024 * 3 * 64 * 2 + 10 * 64 * 4 + 10 * 4,
    "quantize_per_token": 10 * 576 * 3 + 10 * 4,
    "rms_norm_quantize": 10 * 576 * 3 + 576 * 2 + 10 * 4,
    "add_rms_norm_quantize": 10 * 576 * 7 + 576 * 2 + 10 * 4,
    "silu_and_mul_quantize": 10 * 1536 * 5 + 10 * 4,
    "gelu_and_mul_quantize": 10 * 1536 * 5 + 10 * 4,
    "gelu_and_mul": 10 * (2 + 1) * 1536 * 2,
    "w8a8_matmul": 10 * 576 * 3 + 10 * 4 + 576 * 576 + 576 * 4,
    "fp8_matmul": 10 * 576 * 3 + 10 * 4 + 576 * 576 + 576 * 4,
    "w8a16_matmul": 10 * 576 * 4 + 576 * 576 + 576 * 4,
    "w4a16_matmul": 10 * 576 * 4 + 576 * 576 // 2 + 576 * 9 * 2,
    "fused_moe": 10 * 576 * 4 + 8 * 3 * 576 * 1536 * 2 + 10 * 2 * 12,
    "gather_kv_blocks": 2 * 20 * 16 * 3 * 64 * 2 + 20 * 4,
    "apply_bitmask": 10 * 128256 + 10 * 128256 // 8,
    "sample": 10 * 128256 * 4 + 10 * 32,
    "verify_draft": 10 * (128256 * 4 + 24) + 40 * 20 + 10 * 12,
    "silu_and_mul": 10 * (2 + 1) * 1536 * 2,
}

# For 10 tokens of SmolLM2-135M in bfloat16: two operations for each product of two matrices' elements.
FLOPS = {
    "w8a8_matmul": 2 * 10 * 576 * 576,
    "fp8_matmul": 2 * 10 * 576 * 576,
    "w8a16_matmul": 2 * 10 * 576 * 576,
    "w4a16_matmul": 2 * 10 * 576 * 576,
    "fused_moe": 6 * 10 * 2 * 576 * 1536,
    "prefill_attention": 4 * 9 * 64 * (10 * 11 // 2),
    "decode_attention": 4 * 10 * 1024 * 9 * 64,
}


def _run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    path = BENCHMARKS / f"bench_{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    code: Any = ended.value.code
    return int(code)


@pytest.mark.parametrize("name", KERNELS)
def test_each_kernel_has_a_benchmark_that_counts_bytes_and_operations(name: str) -> None:
    make_case = runpy.run_path(str(BENCHMARKS / f"bench_{name}.py"))["make_case"]
    case = make_case(MODEL_SHAPES[0], 10, torch.bfloat16, torch.device("cpu"))
    assert case.bytes_moved == BYTES_MOVED[name]
    assert case.flops == FLOPS.get(name, 0)


@pytest.mark.parametrize("name", KERNELS)
def test_the_benchmark_runs_on_a_cpu(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--device", "cpu", "--model", "smollm2-135m", "--num-tokens", "1", "3", "--seconds", "0.001"]
    assert _run(name, monkeypatch, *options) == 0
    title, header, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{name} on cpu, ")
    assert [line.split()[:3] for line in lines] == [["smollm2-135m", "1", "torch"], ["smollm2-135m", "3", "torch"]]
    assert all(len(line) == len(header) and float(line.split()[5]) >= 0 for line in lines)


def test_a_wrong_implementation_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay_kernels import benchmark

    monkeypatch.setattr(
        benchmark, "_implementations", lambda name, device: [("wrong", lambda gate_up: gate_up[:, ::2].clone())]
    )
    make_case = runpy.run_path(str(BENCHMARKS / "bench_silu_and_mul.py"))["make_case"]
    with pytest.raises(AssertionError, match="not close"):
        benchmark.main("silu_and_mul", make_case, arguments=["--device", "cpu", "--num-tokens", "2"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("rms_norm", monkeypatch, "--device", "cuda") == 2
    assert "PyTorch sees no GPU on this machine; use --device cpu" in capsys.readouterr().err


def test_no_tokens_is_a_bad_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("rotary", monkeypatch, "--num-tokens", "0") == 2
    assert "must be at least 1, got 0" in capsys.readouterr().err
