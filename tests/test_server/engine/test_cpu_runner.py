"""Which models CPUs compute in the C++ library, and that its runner answers as the runner of torch operators does."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay_kernels.cpu.library import VARIANTS, cpu_flags
from forebay_server.config import EngineConfig
from forebay_server.engine import runners
from forebay_server.engine.cpu_runner import CpuRunner
from forebay_server.engine.engine import Engine, load_engine
from forebay_server.engine.model_runner import ModelRunner
from forebay_server.messages import AddRequest, RequestOutput
from forebay_server.sampling_params import SamplingParams
from tests.test_server.models.tiny_models import save_tiny

PROMPT = [(7 * index) % 120 + 3 for index in range(45)]

# a library that could run and was not built fails these tests: a skip would hide it
pytestmark = pytest.mark.skipif(not VARIANTS["avx2"] <= cpu_flags(), reason="this CPU has no AVX2")


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and there is no C++ library."""
    return lambda: monkeypatch.setattr(runners, "best_variant", lambda: None)


def load(folder: Path, **options: Any) -> Engine:
    merged: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 64, "device": "cpu"} | options
    config = EngineConfig(model=str(folder), **merged)
    return load_engine(config, debug=True)[0]


def answer(engine: Engine, *requests: AddRequest) -> dict[str, list[RequestOutput]]:
    """Everything that the engine tells of each request."""
    for request in requests:
        engine.add(request)
    outputs: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            outputs[output.request_id].append(output)
    return outputs


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def scores(engine: Engine, prompt: list[int]) -> torch.Tensor:
    """The log-probabilities of a prompt's tokens."""
    sampling = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    outputs = answer(engine, AddRequest(request_id="a", prompt_token_ids=prompt, sampling=sampling))["a"]
    told = [entry for output in outputs if output.prompt_logprobs for entry in output.prompt_logprobs]
    return torch.tensor([entry.chosen for entry in told])


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3 bias", "mistral window", "phi3"])
@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8", "dtype": "float32"},
        {"quantization": "int4", "dtype": "float32"},
        {"quantization": "int8", "dtype": "float32", "kv_cache_dtype": "int8"},
        {"quantization": "none"},
    ],
    ids=str,
)
def test_answers_as_torch_operators_do(
    tmp_path: Path, name: str, options: dict[str, str], without_library: Callable[[], None]
) -> None:
    folder, _ = save_tiny(tmp_path / "model", name, tie_word_embeddings=True)
    compiled = load(folder, **options)
    assert isinstance(compiled._runner, CpuRunner)
    without_library()
    fallback = load(folder, **options)
    assert isinstance(fallback._runner, ModelRunner)
    prompts = [PROMPT, *(PROMPT[start : start + 15] for start in range(0, 30, 6))]
    differences = [(scores(compiled, prompt) - scores(fallback, prompt)).abs() for prompt in prompts]
    assert [len(difference) for difference in differences] == [len(prompt) - 1 for prompt in prompts]
    # A number may round to the other side, rarely, and moves what follows; what is wrong moves every prompt.
    # In bfloat16 the fallback rounds after every operation.
    is_quantized = options["quantization"] != "none"
    means = sorted(float(difference.mean()) for difference in differences)
    assert means[0] < (0.001 if is_quantized else 0.1)
    assert means[len(means) // 2 - 1] < (0.01 if is_quantized else 0.1)  # half of the prompts
    assert means[-1] < (0.04 if is_quantized else 0.1)
    assert max(difference.max() for difference in differences) < (0.2 if is_quantized else 0.5)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("gemma2", {}, "the architecture computes more than the step knows"),
        ("mixtral", {}, "attention or feed-forward part compute more than the step knows"),
        ("phi4 mini", {}, "the part of each head that turns is no multiple of 16"),
        ("llama", {"dtype": "float32"}, "weights are float32"),
        ("llama", {"quantization": "int8-weight-only"}, "weights are quantized and their inputs are not"),
    ],
)
def test_other_models_are_computed_by_torch_operators(
    tmp_path: Path, name: str, options: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = save_tiny(tmp_path / "model", name)
    with caplog.at_level(logging.INFO):
        engine = load(folder, **options)
    assert isinstance(engine._runner, ModelRunner)
    assert reason in caplog.text


def test_a_window_longer_than_any_request_changes_nothing(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path / "model", "mistral window", sliding_window=64)
    windowed = load(folder)
    assert isinstance(windowed._runner, CpuRunner)
    folder, _ = save_tiny(tmp_path / "same", "mistral window", sliding_window=None)
    assert torch.equal(scores(windowed, PROMPT), scores(load(folder), PROMPT))


def test_every_kind_of_request_is_the_same_in_company(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path / "model", "llama")
    greedy = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    drawn = SamplingParams(max_tokens=6, temperature=1.0, seed=4, logprobs=2, ignore_eos=True)
    scored = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=1, ignore_eos=True)
    requests = [
        AddRequest(request_id="greedy", prompt_token_ids=PROMPT[:20], sampling=greedy),
        AddRequest(request_id="drawn", prompt_token_ids=PROMPT[3:30], sampling=drawn),
        AddRequest(request_id="scored", prompt_token_ids=PROMPT[5:], sampling=scored),
        AddRequest(request_id="pooled", prompt_token_ids=PROMPT[9:33], sampling=greedy, pooling="mean"),
    ]
    options = {"quantization": "int8", "max_num_batched_tokens": 32}
    together = answer(load(folder, **options), *requests)
    for request in requests:
        alone = answer(load(folder, **options), request)[request.request_id]
        assert tokens_of(alone) == tokens_of(together[request.request_id])
        assert [output.logprobs for output in alone] == [output.logprobs for output in together[request.request_id]]
