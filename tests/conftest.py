"""For every test: how OpenMP's threads wait, and how long the long tests are."""

import os

import pytest

# waiting threads sleep, as in the engine process; spinning ones starve a small machine
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch is first imported


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="fuzz and load tests at their full length")


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether the tests that have a short and a long form shall be long."""
    return bool(request.config.getoption("--long"))
