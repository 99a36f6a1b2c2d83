"""A server with the fake engine and the tiny model, shared by the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.fakes.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(
        tmp_path_factory.mktemp("server"), ["--model", str(tiny_model), "--served-model-name", "tiny", "alias"]
    )
    yield running
    running.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as made:
        yield made
