"""For every test: how OpenMP's threads wait, how long the long tests are; no example is judged by the clock."""

import os

import pytest
from hypothesis import HealthCheck, settings

# waiting threads sleep, as in the engine process; spinning ones starve a small machine
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch is first imported

# a busy machine takes as long as it takes: examples that are slow to draw or to run say nothing about the code
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="fuzz and load tests at their full length")


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether the tests that have a short and a long form shall be long."""
    return bool(request.config.getoption("--long"))
