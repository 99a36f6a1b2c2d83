"""A model over several processes: the answers of one, and an end in bounded time when a rank is lost."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay_server import LLM, SamplingParams
from forebay_server.engine.forward_pass import BatchPart, FlatBatch
from forebay_server.errors import StartupError
from forebay_server.messages import AddRequest
from forebay_server.parallel.forward import batch_of, step_message
from forebay_server.parallel.messages import BlockTables
from tests.test_server.models.tiny_models import save_tiny

PROMPTS = [torch.randint(3, 127, (length,), generator=torch.Generator().manual_seed(5)).tolist() for length in (33, 2)]
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=1)
BOUND_SECONDS = 30


@contextmanager
def model(folder: Path, **options: Any) -> Iterator[LLM]:
    settings: dict[str, Any] = {"dtype": "float32", "kv_cache_tokens": 512, "device": "cpu"}
    llm = LLM(str(folder), debug=True, **(settings | options))
    try:
        yield llm
    finally:
        llm.close()


def answers(llm: LLM) -> list[list[int]]:
    return [answer.token_ids for answer in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(("name", "size"), [("llama", 4), ("qwen3_moe", 2)])
def test_answers_of_several_ranks_equal_those_of_one(tmp_path: Path, name: str, size: int) -> None:
    folder, _ = save_tiny(tmp_path, name, vocab_size=127)
    with model(folder) as one:
        expected = answers(one)
    with model(folder, tensor_parallel_size=size, max_num_batched_tokens=16) as several:
        assert len(rank_pids()) == size - 1
        assert answers(several) == expected
        assert answers(several) == expected  # the second time from the prefix cache
        scores = several.generate(PROMPTS[:1], SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1))
        assert len(scores[0].prompt_logprobs or []) == len(PROMPTS[0]) - 1
    assert not rank_pids()


@pytest.fixture
def two_ranks(tmp_path: Path) -> Iterator[LLM]:
    folder, _ = save_tiny(tmp_path, "llama")
    with model(folder, tensor_parallel_size=2) as llm:
        yield llm


def rank_pids() -> list[int]:
    """Processes of other ranks that this test started."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            is_rank = b"parallel.worker" in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and is_rank:
            pids.append(int(entry.name))
    return pids


def until_it_fails(work: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < deadline:
        work()
        time.sleep(0.01)


def test_a_rank_that_dies_while_idle_is_noticed(two_ranks: LLM) -> None:
    two_ranks.engine.check()
    (pid,) = rank_pids()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StartupError, match="rank 1 was killed by signal 9") as caught:
        until_it_fails(two_ranks.engine.check)
    assert caught.value.exit_code == 15


def test_a_rank_that_dies_in_a_step_ends_the_engine(two_ranks: LLM) -> None:
    long = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
    two_ranks.engine.add(AddRequest(request_id="long", prompt_token_ids=PROMPTS[0], sampling=long))
    two_ranks.engine.step()
    (pid,) = rank_pids()
    os.kill(pid, signal.SIGSTOP)  # it is in the middle of a step, then gone
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(StartupError, match="rank 1") as caught:
        until_it_fails(two_ranks.engine.step)
    assert caught.value.exit_code == 15
    assert time.monotonic() < started + BOUND_SECONDS


def test_a_model_that_does_not_divide_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "llama")
    with pytest.raises(StartupError, match="4 attention heads cannot be divided") as caught:
        LLM(str(folder), tensor_parallel_size=3)
    assert caught.value.exit_code == 2
    assert not rank_pids()


def test_what_goes_wrong_on_another_rank_is_told_with_its_exit_code(tmp_path: Path) -> None:
    """Only rank 1 finds too little memory: it is told a limit of its own."""
    folder, _ = save_tiny(tmp_path, "llama")
    with pytest.raises(StartupError, match=r"rank 1: .* weights need") as caught:
        start_with_little_memory_elsewhere(folder)
    assert caught.value.exit_code == 13
    assert not rank_pids()


def start_with_little_memory_elsewhere(folder: Path) -> None:
    from forebay_server.config import EngineConfig
    from forebay_server.parallel.messages import Loaded
    from forebay_server.parallel.ranks import Ranks
    from forebay_server.weights.quantization import QuantizationOptions

    ranks = Ranks(EngineConfig(model=str(folder), device="cpu", tensor_parallel_size=2), QuantizationOptions(), 1000, 1)
    try:
        ranks.wait_for(Loaded)
    finally:
        ranks.close()


def test_batches_arrive_as_they_were_sent() -> None:
    """Blocks grow, change hands after a preemption, and requests come and go."""
    ours, theirs = BlockTables(), BlockTables()
    steps = [
        [("a", [1, 2]), ("b", [3])],
        [("a", [1, 2]), ("b", [3, 4])],
        [("b", [3, 4, 5])],
        [("a", [9, 2]), ("b", [3, 4, 5])],
        [("a", [9]), ("b", [7, 4, 5])],
    ]
    for number, step in enumerate(steps):
        parts = [BatchPart(name, [number], number, list(blocks)) for name, blocks in step]
        batch = FlatBatch([number], parts, [0])
        assert batch_of(step_message(batch, ours), theirs) == batch


def test_only_what_changed_is_sent() -> None:
    tables = BlockTables()
    for blocks, sent in (([1, 2], [1, 2]), ([1, 2], []), ([1, 2, 3], [3])):
        message = step_message(FlatBatch([], [BatchPart("a", [5], 9, blocks)], [0]), tables)
        assert message.parts[0].more_block_ids == sent
