"""hack/gpu_check.sh: its parts on a CPU with tiny shapes, and that a part which fails or hangs costs only itself."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.gpu_check import __main__ as gpu_check
from hack.gpu_check.parts import QWEN3_06B, RUN, nano_requests
from tests.test_kernels import conftest  # noqa: F401  chooses the interpreter before triton is imported

ROOT = Path(__file__).parents[2]


def test_the_limits_leave_room_in_eight_minutes() -> None:
    assert sum(part.limit_seconds for part in gpu_check.PARTS) < 8 * 60
    assert [part.name for part in gpu_check.PARTS] == list(RUN)


def test_the_workload_is_nano_vllms() -> None:
    requests = nano_requests(is_dry=False)
    assert len(requests) == 256
    assert sum(request.sampling.max_tokens for request in requests) == 133_966
    lengths = [len(request.prompt_token_ids) for request in requests]
    assert sum(lengths) == 142_827
    assert (min(lengths) >= 100, max(lengths) <= 1024) == (True, True)
    assert max(token for request in requests for token in request.prompt_token_ids) < QWEN3_06B["vocab_size"]


@pytest.mark.timeout(1800)  # three processes that import torch, and an interpreter
def test_the_script_runs_without_a_gpu_on_tiny_shapes(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    command = ["bash", str(ROOT / "hack" / "gpu_check.sh"), "--dry-run", "--output", str(file)]
    command += ["--limit-factor", "15", "--only", "environment", "answers", "nano-int8-cache"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts: dict[str, Any] = json.loads(file.read_text())["parts"]
    assert all(part["ok"] for part in parts.values())
    nano = parts["nano-int8-cache"]["result"]
    expected = sum(request.sampling.max_tokens for request in nano_requests(is_dry=True))
    assert (nano["output_tokens"], nano["computed_by"]) == (expected, "triton")
    assert nano["tokens_per_second_without_overlap"] > 0
    assert parts["environment"]["result"]["missing"] == []
    told = parts["answers"]["result"]
    assert told["overlapping"] == told["one_at_a_time"] == told["on_host"]
    assert len(set(map(tuple, told["on_host"]))) > 1


def test_other_parts_run_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert RUN["kernels"](is_dry=True)["implementation"] == "triton"
    tested = RUN["tests"](is_dry=True)
    assert (tested["ok"], tested["counts"]["PASSED"]) == (True, 1), tested
    found = RUN["roofline"](is_dry=True)
    assert (found["ok"], found["measured"]) == (True, False)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1 + len(found["figures"])  # each is told when it is known
    assert json.loads(lines[-1])["figures"] == found["figures"]


def test_failed_tests_are_told_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tests" / "test_kernels"
    folder.mkdir(parents=True)
    (folder / "test_rms_norm.py").write_text(
        "def test_eps_keeps_one(): pass\ndef test_eps_keeps_no(): raise ValueError\n"
    )
    (tmp_path / "hack" / "gpu_check").mkdir(parents=True)
    (tmp_path / "hack" / "gpu_check" / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    told = RUN["tests"](is_dry=True)
    assert (told["ok"], told["counts"]["PASSED"], told["counts"]["FAILED"]) == (False, 1, 1)
    assert "test_eps_keeps_no" in told["failed"][0]
    assert any("ValueError" in line for line in told["tail"])


def test_a_part_that_hangs_is_stopped_and_the_next_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "hack" / "gpu_check"
    module.mkdir(parents=True)
    (module / "__main__.py").write_text(
        "import sys, time\n"
        "part = sys.argv[sys.argv.index('--part') + 1]\n"
        "print('{\"before\": 1}\\n{\"half\":' if part == 'environment' else '', flush=True)\n"
        "time.sleep(600 if part == 'environment' else 0)\n"
        "sys.exit('broken') if part == 'tests' else print('{\"value\": 3}')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    hung = gpu_check.run_part("environment", 2, is_dry=False)
    assert (hung["ok"], hung["error"]) == (False, "stopped after 2 s")
    assert hung["result"] == {"before": 1}  # what it had told before
    broken = gpu_check.run_part("tests", 60, is_dry=False)
    assert (broken["ok"], broken["error"]) == (False, "exit status 1")
    assert "broken" in broken["output"]
    fine = gpu_check.run_part("nano", 60, is_dry=False)
    assert (fine["ok"], fine["result"]) == (True, {"value": 3})
