"""A model over several processes: the answers of one, and an end in bounded time when a rank is lost."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace

from forebay_server import LLM, SamplingParams
from forebay_server.config import EngineConfig
from forebay_server.engine.kv_cache import KVCacheLayout
from forebay_server.errors import StartupError
from forebay_server.llm import Generation, GenerationError
from forebay_server.messages import AddRequest
from forebay_server.parallel import runner
from forebay_server.parallel.messages import Join, Joined, Loaded
from forebay_server.parallel.ranks import Ranks
from forebay_server.parallel.start import RankZero
from forebay_server.weights.quantization import QuantizationOptions
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


@pytest.mark.parametrize(("name", "tensor", "pipeline"), [("llama", 4, 1), ("gemma3", 1, 3), ("qwen3_moe", 2, 2)])
def test_answers_of_several_ranks_equal_those_of_one(
    tmp_path: Path, name: str, tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.MIN_MICRO_BATCH_TOKENS, "cpu", 1)
    folder, _ = save_tiny(tmp_path, name, vocab_size=127)
    with model(folder) as one:
        expected, wanted = answers(one), everything(one)
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    with model(folder, max_num_batched_tokens=16, **sizes) as several:
        assert len(rank_pids()) == tensor * pipeline - 1
        assert answers(several) == expected
        assert answers(several) == expected  # the second time from the prefix cache
        check_equal(everything(several), wanted)
    assert not rank_pids()


def test_quantized_experts_of_two_ranks_answer_as_those_of_one(tmp_path: Path) -> None:
    sizes = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1}
    folder, _ = save_tiny(tmp_path, "qwen2_moe", num_hidden_layers=2, **sizes)
    with model(folder, quantization="int8") as one:
        expected = answers(one)
    with model(folder, quantization="int8", tensor_parallel_size=2) as two:
        assert answers(two) == expected


def everything(llm: LLM) -> list[Generation]:
    """Whatever sampling can look at, in one step: drawn, penalised, restricted, scored."""
    ask = partial(SamplingParams, max_tokens=5, ignore_eos=True, seed=7)
    params = [
        ask(temperature=1.0, top_p=0.9, min_p=0.01),
        ask(temperature=0, repetition_penalty=1.5, frequency_penalty=0.5),
        ask(temperature=1.0, allowed_token_ids=(5, 6, 7), logprobs=3),
        ask(temperature=0, prompt_logprobs=2),
    ]
    prompts = [PROMPTS[0], PROMPTS[0][:20], PROMPTS[1], [*PROMPTS[0], *PROMPTS[0][::-1]]]
    return llm.generate(prompts, params)


def check_equal(found: list[Generation], wanted: list[Generation]) -> None:
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in wanted]
    for answer, other in zip(found, wanted, strict=True):
        for own, others in ((answer.logprobs, other.logprobs), (answer.prompt_logprobs, other.prompt_logprobs)):
            assert [one.chosen for one in own or []] == pytest.approx([one.chosen for one in others or []], abs=1e-4)
    assert len(found[3].prompt_logprobs or []) == 2 * len(PROMPTS[0]) - 1
    assert found[2].logprobs is not None


def test_a_step_that_cannot_be_sampled_costs_only_its_requests(tmp_path: Path) -> None:
    """No token has the number of the bias: the rank that samples says so, and all ranks go on."""
    folder, _ = save_tiny(tmp_path, "llama")
    with model(folder, tensor_parallel_size=2, pipeline_parallel_size=2) as llm:
        with pytest.raises(GenerationError, match=r"the step failed: .*IndexError"):
            llm.generate(PROMPTS, replace(GREEDY, logit_bias={100_000: 1.0}))
        assert len(answers(llm)) == 2


def test_vectors_of_several_stages_equal_those_of_one(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "llama")
    with model(folder) as one, model(folder, pipeline_parallel_size=2) as two:
        assert two.embed(PROMPTS, pooling="mean") == one.embed(PROMPTS, pooling="mean")


def test_ranks_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while they run: an engine that is killed could not remove them."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    folder, _ = save_tiny(tmp_path, "llama")
    with model(folder, pipeline_parallel_size=2) as llm:
        assert len(answers(llm)) == 2
        assert not list(temporary.iterdir())


@pytest.fixture(params=["tensor_parallel_size", "pipeline_parallel_size"])
def two_ranks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    folder, _ = save_tiny(tmp_path, "llama")
    with model(folder, **{request.param: 2}) as llm:
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


@pytest.mark.parametrize(
    ("available_bytes", "exit_code", "message"),
    [(1000, 13, r"rank 1: .* weights need"), (30_000_000, 14, r"rank 1: a KV cache of")],
)
def test_what_goes_wrong_on_another_rank_is_told_with_its_exit_code(
    tmp_path: Path, available_bytes: int, exit_code: int, message: str
) -> None:
    """Only rank 1 finds too little memory: it is told a limit of its own."""
    folder, _ = save_tiny(tmp_path, "llama")
    config = EngineConfig(model=str(folder), device="cpu", pipeline_parallel_size=2, kv_cache_tokens=10**6)
    ranks = Ranks(config, QuantizationOptions(), 512, available_bytes, 1)
    try:
        with pytest.raises(StartupError, match=message) as caught:
            ranks.wait_for(Loaded)
    finally:
        ranks.close()
    assert caught.value.exit_code == exit_code
    assert not rank_pids()


def test_the_cache_is_as_large_as_the_rank_with_least_room_allows() -> None:
    class Others:
        store_path = ""

        def __init__(self) -> None:
            self.sent: list[Join] = []

        def wait_for(self, kind: type[Loaded] | type[Joined]) -> list[Loaded | Joined]:
            return [Loaded(70, 9), Loaded(30, 5)] if kind is Loaded else [Joined(), Joined()]

        def send(self, message: Join) -> None:
            self.sent.append(message)

    others = Others()
    zero = RankZero(others=cast(Ranks, others))
    layout = KVCacheLayout(num_blocks=7, block_size=16, bytes_per_token=8, dtype=torch.float32)
    agreed, weight_bytes = zero.join(layout, 50, torch.device("cpu"))
    assert (agreed.num_blocks, weight_bytes) == (5, 70)
    assert others.sent == [Join(5)]


def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "llama")
    with pytest.raises(StartupError, match="--pipeline-parallel-size 5: 4 layers cannot be so many stages") as caught:
        LLM(str(folder), pipeline_parallel_size=5)
    assert caught.value.exit_code == 2
    assert not rank_pids()
