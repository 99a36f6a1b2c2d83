"""Servers with the tiny model, with the fake engine and with the real one, shared by the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.fakes.server_process import REAL, ServerProcess
from tests.fakes.tiny_model import END_TOKEN_ID, VOCAB_SIZE, write_tiny_model
from tests.test_server.models.tiny_llama import save_tiny_llama


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


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The tiny model with random weights behind the real engine, in float32."""
    folder = tmp_path_factory.mktemp("real-server")
    model = save_tiny_llama(write_tiny_model(folder / "model"), vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_ID)
    arguments = ["--model", str(model), "--served-model-name", "tiny", "--device", "cpu", "--dtype", "float32"]
    running = ServerProcess(folder, [*arguments, "--kv-cache-tokens", "2048"], program=REAL, wait_seconds=120)
    yield running
    running.close()
