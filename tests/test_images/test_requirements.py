"""The Dockerfiles install what pyproject.toml says an extra needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from hack.images.requirements import requirements_of

ROOT = Path(__file__).parents[2]
PYPROJECT = """
[build-system]
requires = ["hatchling>=1"]
[project]
dependencies = ["pydantic>=2"]
[project.optional-dependencies]
operator = ["pyyaml>=6", "kopf>=1.45"]
tracing = ["opentelemetry-sdk>=1"]
[tool.ruff]
line-length = 120
"""


def test_an_extra_is_listed_with_what_the_project_always_needs() -> None:
    assert requirements_of(PYPROJECT, "operator") == ["kopf>=1.45", "pydantic>=2", "pyyaml>=6"]


def test_of_several_extras_all_is_listed_once() -> None:
    both = ["kopf>=1.45", "opentelemetry-sdk>=1", "pydantic>=2", "pyyaml>=6"]
    assert requirements_of(PYPROJECT, "operator", "tracing") == both


def test_the_build_backend_is_listed_alone() -> None:
    assert requirements_of(PYPROJECT) == ["hatchling>=1"]


def test_a_change_of_another_setting_changes_nothing() -> None:
    changed = PYPROJECT.replace("120", "100")
    assert requirements_of(changed, "operator") == requirements_of(PYPROJECT, "operator")


def test_an_unknown_extra_is_named() -> None:
    with pytest.raises(KeyError, match="server"):
        requirements_of(PYPROJECT, "server")


def test_it_runs_as_a_script_as_the_dockerfiles_run_it() -> None:
    command = [sys.executable, "hack/images/requirements.py", "pyproject.toml", "--extra", "operator"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("kopf") for line in lines)
    assert not [line for line in lines if line.startswith("torch")]


def test_every_pin_of_torch_and_its_libraries_goes_into_the_large_layer() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    large = [pin for pin in pins if pin.startswith(("torch==", "triton==", "cuda-", "nvidia-"))]
    assert {"torch", "triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"} <= {pin.split("==")[0] for pin in large}
    assert "grep -E '^(torch|triton|cuda-|nvidia-)' constraints.txt" in (ROOT / "server/Dockerfile").read_text()


def test_the_server_image_brings_what_traces_need() -> None:
    dockerfile = (ROOT / "server/Dockerfile").read_text(encoding="utf-8")
    assert "pyproject.toml --extra server --extra tracing > server.txt" in dockerfile
    command = [
        sys.executable,
        "hack/images/requirements.py",
        "pyproject.toml",
        "--extra",
        "server",
        "--extra",
        "tracing",
    ]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"fastapi", "opentelemetry-sdk"} <= {line.partition(">")[0] for line in lines}
