"""A real engine that reads a prompt of thousands of tokens in small chunks, and what others see of that."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.background import COMPLETIONS
from tests.fakes.server_process import REAL, ServerProcess, wait_for
from tests.fakes.tiny_real import write_tiny_real_model
from tests.test_server.test_small_pool import complete, prompt_of

NUM_LONG_TOKENS, CHUNK_TOKENS = 4000, 32


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
    """vllm #10774, #33499: one that takes a hundred steps to read; twenty short ones come while it is read."""
    long = {"prompt": prompt_of(NUM_LONG_TOKENS), "max_tokens": 1, "temperature": 0}
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(server.api, COMPLETIONS, long)
        wait_for(lambda: server.load()["running"] == 1, 20, "the long prompt is being read")
        short = complete(server, prompt=[prompt_of(4, seed=seed) for seed in range(20)], max_tokens=2)
        assert len(short["choices"]) == 20
        assert not reading.done()
        assert reading.result().status == 200
