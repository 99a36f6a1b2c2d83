"""SmolLM2 and its reference: read once for all tests."""

from pathlib import Path

import pytest

from tests.smollm2 import smollm2_gguf
from tests.test_server.models.reference import Reference


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return smollm2_gguf()


@pytest.fixture(scope="session")
def reference(smollm2: Path) -> Reference:
    return Reference(smollm2)
