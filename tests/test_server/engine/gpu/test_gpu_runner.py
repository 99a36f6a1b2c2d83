"""The GPU's way through a step, on a CPU: kernels in the interpreter, graphs by calling; answers as torch operators."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay_kernels.dispatch import interpreted_on_cpu
from forebay_server.config import EngineConfig
from forebay_server.engine import forward_pass, runners
from forebay_server.engine.engine import Engine, load_engine
from forebay_server.engine.gpu.runner import GpuRunner
from forebay_server.engine.model_runner import ModelRunner
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.gpu.graph_fakes import ReplayByCalling
from tests.test_server.models.tiny_models import save_tiny

PROMPTS = [[(7 * index + 3 * start) % 120 + 3 for index in range(start, start + 3 + 4 * start)] for start in range(3)]
"""3, 7 and 11 tokens: less than a block of 4, and more."""


@pytest.fixture
def kernels() -> Iterator[None]:
    """CPU tensors are given to Triton."""
    with interpreted_on_cpu():
        yield


def save(folder: Path, name: str) -> Path:
    """Write a model of two layers."""
    return save_tiny(folder / "model", name, num_hidden_layers=2)[0]


def load(folder: Path, **options: Any) -> Engine:
    merged: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 32,
        "device": "cpu",
        "max_num_seqs": 4,
        "block_size": 4,
    }
    return load_engine(EngineConfig(model=str(folder), **(merged | options)), debug=True)[0]


def answers(engine: Engine, sampling: SamplingParams, prompts: list[list[int]] = PROMPTS) -> dict[str, list[int]]:
    """The tokens of each prompt, served at once."""
    told: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        told[str(index)] = []
        engine.add(AddRequest(request_id=str(index), prompt_token_ids=prompt, sampling=sampling))
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            told[output.request_id] += output.token_ids
    return told


GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


def by_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, list[int]]:
    """What torch operators answer, greedily."""
    with monkeypatch.context() as patch:
        patch.setattr(runners, "best_variant", lambda: None)
        engine = load(folder, **options)
        assert isinstance(engine._runner, ModelRunner)
        return answers(engine, GREEDY)


@pytest.mark.parametrize(
    "name",
    ["llama", "mistral window", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "phi4 mini", "mixtral", "smollm3 window"],
)
def test_answers_greedily_as_torch_operators_do(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path, name)
    expected = by_torch(folder, monkeypatch)
    with interpreted_on_cpu():
        engine = load(folder)
        assert isinstance(engine._runner, GpuRunner)
        assert answers(engine, GREEDY) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "bfloat16"},
        {"max_num_batched_tokens": 7},
        {"block_size": 16},
        {"kv_cache_tokens": 32},
    ],
    ids=str,
)
def test_answers_as_torch_operators_do_however_the_cache_and_the_steps_are(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches of fewer bits, prompts in chunks, blocks of another size, so few of them that requests are preempted."""
    folder = save(tmp_path, "llama")
    expected = by_torch(folder, monkeypatch, **options)
    with interpreted_on_cpu():
        assert answers(load(folder, **options), GREEDY) == expected


def test_decodes_by_graphs_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences are padded to four; as they end at different times, to two and to one."""
    folder = save(tmp_path, "qwen3")
    lengths = [SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True) for tokens in (2, 3, 5)]

    def serve(engine: Engine) -> dict[str, list[int]]:
        told: dict[str, list[int]] = {str(index): [] for index in range(3)}
        for index, prompt in enumerate(PROMPTS):
            engine.add(AddRequest(request_id=str(index), prompt_token_ids=prompt, sampling=lengths[index]))
        while engine.has_work:
            for output in engine.step():
                assert output.error is None, output.error
                told[output.request_id] += output.token_ids
        return told

    with interpreted_on_cpu():
        expected = serve(load(folder))
        capture = ReplayByCalling()
        monkeypatch.setattr(forward_pass, "cuda_capture", lambda *_: capture)
        assert serve(load(folder)) == expected
    assert capture.num_captures == 3
    assert capture.num_replays >= 1


@pytest.mark.usefixtures("kernels")
def test_an_fp8_cache_answers_as_one_of_more_bits_while_scores_are_far_apart(tmp_path: Path) -> None:
    folder = save(tmp_path, "llama")
    engine = load(folder, kv_cache_dtype="fp8")
    first = answers(engine, GREEDY)
    assert {key: tokens[0] for key, tokens in first.items()} == {
        key: tokens[0] for key, tokens in answers(load(folder), GREEDY).items()
    }
    assert answers(engine, GREEDY) == first  # by prompts that are found in the cache


@pytest.mark.usefixtures("kernels")
def test_a_seeded_answer_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    folder = save(tmp_path, "llama")
    engine = load(folder)
    sampling = SamplingParams(max_tokens=4, temperature=0.9, top_p=0.8, top_k=40, min_p=0.01, seed=5, ignore_eos=True)
    together = answers(engine, sampling)
    for index, prompt in enumerate(PROMPTS):
        engine.scheduler.reset_prefix_cache()
        assert answers(engine, sampling, [prompt])["0"] == together[str(index)]


@pytest.mark.usefixtures("kernels")
def test_requests_with_rules_are_sampled_beside_others(tmp_path: Path) -> None:
    folder = save(tmp_path, "llama")
    engine = load(folder)
    plain = answers(engine, GREEDY, PROMPTS[:1])["0"]
    told: dict[str, list[int]] = {"plain": [], "ruled": [], "told": []}
    logprobs = []
    ruled = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, logit_bias={plain[0]: -100.0})
    for name, sampling in (
        ("plain", GREEDY),
        ("ruled", ruled),
        ("told", SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, logprobs=2)),
    ):
        engine.add(AddRequest(request_id=name, prompt_token_ids=PROMPTS[0], sampling=sampling))
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            told[output.request_id] += output.token_ids
            logprobs += output.logprobs or []
    assert told["plain"] == plain
    assert told["told"] == plain
    assert plain[0] not in told["ruled"]
    assert len(logprobs) == 4


@pytest.mark.usefixtures("kernels")
def test_prompts_are_scored_by_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path, "llama")
    scores = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)

    def chosen(engine: Engine) -> list[float]:
        engine.add(AddRequest(request_id="a", prompt_token_ids=PROMPTS[2], sampling=scores))
        found: list[float] = []
        while engine.has_work:
            for output in engine.step():
                found += [entry.chosen for entry in output.prompt_logprobs or []]
        return found

    found = chosen(load(folder))
    with monkeypatch.context() as patch:
        patch.setattr(runners, "runs_triton", lambda _: False)
        patch.setattr(forward_pass, "runs_triton", lambda _: False)
        patch.setattr(runners, "best_variant", lambda: None)
        expected = chosen(load(folder))
    assert len(found) == len(PROMPTS[2]) - 1
    assert found == pytest.approx(expected, abs=1e-4)
