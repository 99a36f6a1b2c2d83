"""A real engine that reads a prompt of thousands of tokens in chunks, and what others see of that."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.background import all_at_once
from tests.fakes.server_process import REAL, ServerProcess
from tests.fakes.tiny_real import write_tiny_real_model
from tests.test_server.test_small_pool import complete, prompt_of

NUM_LONG_TOKENS, CHUNK_TOKENS = 8000, 256


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("long-prompts")
    running = ServerProcess(
        folder,
        [
            *("--model", str(write_tiny_real_model(folder / "tiny", context_tokens=NUM_LONG_TOKENS + 64))),
            *("--device", "cpu", "--dtype", "float32", "--kv-cache-tokens", str(2 * NUM_LONG_TOKENS)),
            *("--max-num-batched-tokens", str(CHUNK_TOKENS), "--max-num-seqs", "32"),
        ],
        program=REAL,
        environment={"OMP_NUM_THREADS": "1"},
        wait_seconds=240,
    )
    yield running
    running.close()


def test_p5_short_prompts_behind_a_long_one_are_answered_before_it(server: ServerProcess) -> None:
    """vllm #10774, #33499: one that takes thirty steps to read, and twenty short ones behind it."""
    long = {"prompt": prompt_of(NUM_LONG_TOKENS), "max_tokens": 1, "temperature": 0}
    short = {"prompt": [prompt_of(4, seed=seed) for seed in range(20)], "max_tokens": 2}
    with ThreadPoolExecutor(2) as pool:
        with all_at_once(server):
            reading = pool.submit(complete, server, **long)
            time.sleep(0.5)  # were it to come second, the test would be weaker, and pass
            answering = pool.submit(complete, server, **short)
        assert len(answering.result()["choices"]) == 20
        assert reading.result()["usage"]["prompt_tokens"] == NUM_LONG_TOKENS
    answered = re.findall(r"POST /v1/completions 200 .* prompt=(\d+) ", server.log)
    assert answered == [str(20 * 4), str(NUM_LONG_TOKENS)], "the server's order, whenever clients looked"
