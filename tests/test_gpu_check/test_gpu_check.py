"""hack/gpu_check.sh: its parts on a CPU with tiny shapes, and that a part which fails or hangs costs only itself."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.gpu_check import __main__ as gpu_check
from hack.gpu_check.parts import QWEN3_06B, RUN, nano_requests

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


def test_the_script_runs_without_a_gpu_on_tiny_shapes(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    command = ["bash", str(ROOT / "hack" / "gpu_check.sh"), "--dry-run", "--output", str(file)]
    command += ["--limit-factor", "10", "--only", "environment", "kernels", "nano-int8-cache", "latency", "roofline"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts: dict[str, Any] = json.loads(file.read_text())["parts"]
    assert all(part["ok"] for part in parts.values())
    assert parts["kernels"]["result"]["implementation"] == "triton"
    nano = parts["nano-int8-cache"]["result"]
    expected = sum(request.sampling.max_tokens for request in nano_requests(is_dry=True))
    assert (nano["output_tokens"], nano["computed_by"]) == (expected, "triton")
    assert parts["latency"]["result"]["milliseconds_per_token"] > 0
    assert parts["roofline"]["result"]["measured"] is False


def test_a_part_that_hangs_is_stopped_and_the_next_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "hack" / "gpu_check"
    module.mkdir(parents=True)
    (module / "__main__.py").write_text(
        "import sys, time\n"
        "part = sys.argv[sys.argv.index('--part') + 1]\n"
        "print('{\"before\": 1}' if part == 'environment' else '', flush=True)\n"
        "time.sleep(600 if part == 'environment' else 0)\n"
        "sys.exit('broken') if part == 'tests' else print('{\"value\": 3}')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    hung = gpu_check.run_part("environment", 2, is_dry=False)
    assert (hung["ok"], hung["error"]) == (False, "stopped after 2 s")
    broken = gpu_check.run_part("tests", 60, is_dry=False)
    assert (broken["ok"], broken["error"]) == (False, "exit status 1")
    assert "broken" in broken["output"]
    fine = gpu_check.run_part("nano", 60, is_dry=False)
    assert (fine["ok"], fine["result"]) == (True, {"value": 3})
