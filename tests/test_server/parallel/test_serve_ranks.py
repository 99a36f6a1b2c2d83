"""A server over two ranks or stages: it chats as one would, and ends rightly when a rank dies or hangs."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from forebay_server import LLM, SamplingParams
from tests.fakes.server_process import REAL, ServerProcess
from tests.smollm2 import smollm2_gguf
from tests.test_server.models.tiny_models import save_tiny
from tests.test_server.models.tiny_tokenizer import save_tokenizer
from tests.test_server.test_serve_architectures import NUM_TOKENS, greedy

BOUND_SECONDS = 90
PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time there was a", "2, 4, 6, 8,"]


@pytest.fixture(params=["--tensor-parallel-size", "--pipeline-parallel-size"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    folder, _ = save_tiny(tmp_path / "model", "qwen3", vocab_size=384, eos_token_id=383)
    save_tokenizer(folder)
    arguments = ["--model", str(folder), "--served-model-name", "tiny", "--device", "cpu", "--dtype", "float32"]
    arguments += [request.param, "2", "--max-engine-restarts", "0", "--hang-timeout", "5"]
    running = ServerProcess(tmp_path, arguments, program=REAL, wait_seconds=400)
    yield running
    running.close()


def rank_pid(server: ServerProcess) -> int:
    """The process of rank 1, a child of the engine process."""
    engine = server.engine_pid()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == engine:
            return int(entry.name)
    raise AssertionError("no second rank")


def test_two_ranks_chat_and_end_when_one_dies(server: ServerProcess, tmp_path: Path) -> None:
    _, reference = save_tiny(tmp_path / "again", "qwen3", vocab_size=384, eos_token_id=383)
    tokenizer = save_tokenizer(tmp_path / "again")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Who logs?"}], temperature=0, max_tokens=NUM_TOKENS
        )
    assert answer.choices[0].message.content == greedy(reference, tokenizer, "Who logs?")
    os.kill(rank_pid(server), signal.SIGKILL)
    assert server.wait(BOUND_SECONDS) == 15
    assert "rank 1 was killed by signal 9" in server.termination["message"]


def test_a_rank_that_hangs_ends_the_pod(server: ServerProcess) -> None:
    rank = rank_pid(server)
    os.kill(rank, signal.SIGSTOP)
    asking = threading.Thread(target=server.api, args=("/v1/completions", {"prompt": "x", "max_tokens": 5}))
    asking.start()
    assert server.wait(BOUND_SECONDS) == 17
    asking.join(BOUND_SECONDS)
    assert not Path(f"/proc/{rank}").exists() or Path(f"/proc/{rank}/cmdline").read_bytes() == b""


def test_stages_of_a_real_model_answer_as_one(tmp_path: Path) -> None:
    """SmolLM2 in two stages, several requests at once: the greedy answers of one process, logits within 1e-5."""
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 256, "kv_cache_tokens": 2048}
    sampling = SamplingParams(max_tokens=8, temperature=0, logprobs=1)
    one = LLM(str(smollm2_gguf()), **settings)
    expected = one.generate(PROMPTS, sampling)
    arguments = ["--model", str(smollm2_gguf()), "--served-model-name", "smollm2", "--pipeline-parallel-size", "2"]
    for name, value in settings.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    server = ServerProcess(tmp_path, arguments, program=REAL, wait_seconds=400)
    try:
        body = {"model": "smollm2", "prompt": PROMPTS, "max_tokens": 8, "temperature": 0, "logprobs": 1}
        choices = server.api("/v1/completions", body).json["choices"]
    finally:
        server.close()
    for choice, answer in zip(choices, expected, strict=True):
        assert choice["text"] == one.tokenizer.decode(answer.token_ids)
        found = choice["logprobs"]["token_logprobs"]
        assert found == pytest.approx([token.chosen for token in answer.logprobs or []], abs=1e-5)
