"""What a GPU's cache has room for when its size is left open, with a device that tells how much is free."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay_kernels.dispatch import interpreted_on_cpu
from forebay_server.config import EngineConfig
from forebay_server.engine import engine as engine_module
from forebay_server.engine import forward_pass
from forebay_server.engine.engine import _plan_kv_cache
from forebay_server.engine.flat_batch import FlatBatch
from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.gpu import largest_step
from forebay_server.engine.gpu.memory import UsedMemory
from forebay_server.engine.kv_cache import GPU_MEMORY_SHARE
from forebay_server.errors import ExitCode, StartupError
from forebay_server.models.decoder import CausalLM
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model
from tests.test_server.engine.gpu.graph_fakes import ReplayByCalling
from tests.test_server.models.tiny_models import save_tiny

GPU = torch.device("cuda")
TOTAL = 10**9


class FakeMemory:
    """What torch.cuda tells of a GPU's memory."""

    def __init__(self) -> None:
        self.free = TOTAL
        self.allocated, self.peak = 0, 0
        self.num_emptied = 0

    def take(self, num_bytes: int) -> None:
        """Let the allocator take memory, use it once and keep it."""
        self.free -= num_bytes
        self.peak = max(self.peak, self.allocated + num_bytes)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> FakeMemory:
    fake = FakeMemory()

    def empty() -> None:
        fake.num_emptied += 1

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (fake.free, TOTAL))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: fake.allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: fake.peak)
    return fake


def config(**options: Any) -> EngineConfig:
    sizes = {"max_num_batched_tokens": 10, "max_num_seqs": 3, "block_size": 4}
    return EngineConfig(model="m", **(sizes | options))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[CausalLM]:
    folder = save_tiny(tmp_path / "model", "llama", num_hidden_layers=1)[0]
    with interpreted_on_cpu():
        yield load_model(open_checkpoint(folder), torch.float32, torch.device("cpu"), 10**9).model


def test_the_largest_step_is_computed_sampled_and_captured(
    model: CausalLM, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[FlatBatch] = []
    logits: list[tuple[int, ...]] = []
    capture = ReplayByCalling()
    compute, of_hidden = ForwardPass.compute, ForwardPass.logits

    def watched(forward: ForwardPass, batch: FlatBatch) -> torch.Tensor:
        batches.append(batch)
        memory.take(1000)
        return compute(forward, batch)

    def watched_logits(forward: ForwardPass, hidden: torch.Tensor) -> torch.Tensor:
        found = of_hidden(forward, hidden)
        logits.append(tuple(found.shape))
        memory.take(500)
        return found

    monkeypatch.setattr(ForwardPass, "compute", watched)
    monkeypatch.setattr(ForwardPass, "logits", watched_logits)
    monkeypatch.setattr(forward_pass, "cuda_capture", lambda *_: capture)
    assert largest_step.largest_step_bytes(model, config(), 32, torch.float32, UsedMemory(GPU)) == 1500
    assert [len(part.token_ids) for part in batches[0].parts] == [4, 4, 2]
    assert logits == [(3, 128)]
    assert capture.num_captures == 1


def test_a_gpus_cache_is_nine_tenths_of_what_the_largest_step_leaves(
    model: CausalLM, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object) -> int:
        memory.take(10**8)
        return 10**8

    monkeypatch.setattr(engine_module, "largest_step_bytes", measured)
    layout = _plan_kv_cache(config(), model, 32, torch.float32, GPU, memory.free)
    expected = int((TOTAL - 10**8) * GPU_MEMORY_SHARE)
    assert expected - 4 * layout.bytes_per_token <= layout.num_bytes <= expected + 4 * layout.bytes_per_token
    assert memory.num_emptied == 2  # before, so that loading hides nothing, and after, so that the cache finds it


def test_nothing_is_measured_for_a_size_that_is_given_nor_on_cpus(
    model: CausalLM, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "largest_step_bytes", lambda *_: pytest.fail("it was measured"))
    given = _plan_kv_cache(config(kv_cache_tokens=40), model, 32, torch.float32, GPU, TOTAL)
    on_cpu = _plan_kv_cache(config(), model, 32, torch.float32, torch.device("cpu"), TOTAL)
    of_ranks = _plan_kv_cache(config(tensor_parallel_size=2), model, 32, torch.float32, GPU, TOTAL)
    assert (given.num_tokens, on_cpu.num_tokens) == (40, 3 * 256)
    assert of_ranks.num_bytes == pytest.approx(TOTAL * GPU_MEMORY_SHARE, rel=0.01)
    assert memory.num_emptied == 0


def test_a_gpu_on_which_the_largest_step_does_not_fit_is_refused(
    model: CausalLM, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine_module, "largest_step_bytes", fails)
    with pytest.raises(StartupError) as caught:
        _plan_kv_cache(config(), model, 32, torch.float32, GPU, memory.free)
    assert caught.value.exit_code == ExitCode.KV_CACHE_DOES_NOT_FIT
