"""A GPU's steps one ahead of the host, on a CPU: tokens that only the device knows, and the way back to the host."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay_kernels.dispatch import interpreted_on_cpu
from forebay_server.config import EngineConfig
from forebay_server.engine import forward_pass
from forebay_server.engine.engine import load_engine
from forebay_server.engine.gpu.readback import Readback
from forebay_server.engine.gpu.runner import GpuRunner
from forebay_server.engine.gpu.staging import Staging
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.gpu.graph_fakes import ReplayByCalling
from tests.test_server.models.tiny_models import save_tiny

PROMPTS = {
    "greedy": [5, 9, 3],
    "drawn": [17, 4, 8, 30, 2, 77],
    "stopped": [40, 41, 42, 43, 44],
    "aborted": [90, 3],
}
"""Together they need more blocks than there are, so that the last one is preempted."""


def sampling_of(name: str, stop_token_id: int | None) -> SamplingParams:
    if name == "drawn":
        return SamplingParams(max_tokens=7, temperature=0.9, top_p=0.9, seed=3, ignore_eos=True)
    stops = (stop_token_id,) if name == "stopped" and stop_token_id is not None else ()
    return SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, stop_token_ids=stops)


class Serving:
    """Serves `PROMPTS` at once and notes what was said and done."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, overlaps: bool, stop: int | None) -> None:
        self.answers: dict[str, list[int]] = {name: [] for name in PROMPTS}
        self.reasons: dict[str, str] = {}
        self.num_pending = 0
        config = EngineConfig(
            model=str(folder), dtype="float32", max_model_len=16, device="cpu", block_size=4, kv_cache_tokens=24
        )
        engine, _ = load_engine(config, debug=True, overlaps=overlaps)
        self._watch(monkeypatch)
        for name, prompt in PROMPTS.items():
            engine.add(AddRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling_of(name, stop)))
        while engine.has_work:
            for output in engine.step():
                assert output.error is None, output.error
                self.answers[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    self.reasons[output.request_id] = output.finish_reason
                if output.request_id == "aborted" and len(self.answers["aborted"]) == 3:
                    engine.abort(["aborted"])
        self.num_preemptions = engine.scheduler.take_counters().new_preemptions
        assert engine.scheduler.pool.num_held == 0

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        launch = GpuRunner.launch

        def watched(runner: GpuRunner, step: SchedulerOutput) -> Callable[[], dict[str, SampledToken]] | None:
            self.num_pending += sum(request.is_pending for request in step.requests)
            return launch(runner, step)

        monkeypatch.setattr(GpuRunner, "launch", watched)


def test_answers_are_the_same_with_and_without_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without graphs; the answer that is stopped is the other one up to the token that stops it."""
    folder = save_tiny(tmp_path / "model", "llama", num_hidden_layers=1)[0]
    capture = ReplayByCalling()
    with interpreted_on_cpu():
        with monkeypatch.context() as patch:
            alone = Serving(folder, patch, overlaps=False, stop=None)
        stop = alone.answers["stopped"][4]
        with monkeypatch.context() as patch:
            together = Serving(folder, patch, overlaps=True, stop=stop)
        with monkeypatch.context() as patch:
            patch.setattr(forward_pass, "cuda_capture", lambda *_: capture)
            by_graphs = Serving(folder, patch, overlaps=True, stop=stop)
    assert alone.num_pending == 0
    whole = alone.answers["stopped"]
    expected = alone.answers | {"stopped": whole[: whole.index(stop) + 1]}
    for found in (together, by_graphs):
        assert found.answers == expected
        assert found.reasons == {"greedy": "length", "drawn": "length", "stopped": "stop", "aborted": "abort"}
        assert found.num_preemptions > 0
        assert found.num_pending > 10
    assert capture.num_replays > 5


def test_a_row_without_finite_logits_gives_the_next_step_a_token_of_the_vocabulary() -> None:
    """An index beyond the table of embeddings would be the end of a GPU's engine."""
    from forebay_server.engine.gpu import device_sampler

    def broken(logits: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([logits.shape[1], -1, 3]), torch.tensor([torch.nan, torch.nan, -1.0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_sampler, "sample", broken)
        token_ids, logprobs = device_sampler.start_sampling(torch.zeros(3, 10), torch.zeros(5, 3))
    assert token_ids.tolist() == [9, 0, 3]
    tokens = device_sampler.read_tokens(token_ids.numpy(), logprobs.numpy())
    assert [token.error is None for token in tokens] == [False, False, True]


def test_the_results_of_two_steps_are_apart_and_buffers_grow() -> None:
    readback = Readback(torch.device("cpu"))

    def start(first: int, count: int) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        ids = torch.arange(first, first + count)
        return readback.start(ids, -ids.float())

    waits = [start(0, 3)]
    for number in range(1, 5):
        waits.append(start(1000 * number, 200 * number))
        ids, scores = waits[number - 1]()
        count = 200 * (number - 1) or 3
        assert ids.tolist() == list(range(1000 * (number - 1), 1000 * (number - 1) + count))
        assert scores.tolist() == [-float(token_id) for token_id in ids]


def test_the_inputs_of_two_steps_are_staged_apart_and_buffers_grow() -> None:
    """While the device still reads one step's inputs, the host writes the next one's."""
    staging = Staging(torch.device("cpu"))
    before: np.ndarray | None = None
    for number, size in enumerate((8, 8, 200_000, 16), 1):
        host, target = staging.begin(size), torch.zeros(size, dtype=torch.uint8)
        host[:] = number
        if before is not None:
            assert set(before.tolist()) == {number - 1}
        staging.send(target)
        assert set(target.tolist()) == {number}
        before = host
