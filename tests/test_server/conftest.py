"""Servers with the fake engine, for the tests of everything around the engine."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fakes.server_process import ServerProcess
from tests.fakes.tiny_model import write_tiny_model

StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def start_server(tiny_model: Path, tmp_path: Path) -> Iterator[StartServer]:
    """Start servers that end with the test."""
    started: list[ServerProcess] = []

    def start(*arguments: str, wait_seconds: float = 60, **environment: str) -> ServerProcess:
        named: Mapping[str, str] = {name.upper(): value for name, value in environment.items()}
        server = ServerProcess(
            tmp_path, ["--model", str(tiny_model), *arguments], environment=named, wait_seconds=wait_seconds
        )
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
