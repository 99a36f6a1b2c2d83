"""Where a sampling parameter comes from: the request, the model's generation_config.json, OpenAI's defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay_server.api.openai_types import CompletionBody
from forebay_server.api.request_params import sampling_params
from forebay_server.api.service import ServedModel
from forebay_server.messages import EngineReady
from forebay_server.sampling_params import SamplingParams
from forebay_server.text.model_text import load_model_text
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model

ENGINE = EngineReady(
    max_model_len=512,
    vocab_size=VOCAB_SIZE,
    block_size=16,
    num_blocks=64,
    kv_cache_tokens=1024,
    kv_bytes_per_token=8,
    weight_bytes=1000,
    dtype="float32",
    device="cpu",
)


def params(folder: Path, generation_config: dict[str, Any] | None, **fields: Any) -> SamplingParams:
    model = write_tiny_model(folder)
    if generation_config is not None:
        (model / "generation_config.json").write_text(json.dumps(generation_config))
    return sampling_params(
        CompletionBody(prompt="x", **fields),
        ServedModel(load_model_text(model), ENGINE),
        num_prompt_tokens=1,
        max_tokens=5,
        default_max_tokens=16,
        max_tokens_field="max_tokens",
        prompt_field="prompt",
        logprobs=None,
    )


def of_interest(found: SamplingParams) -> list[float]:
    return [found.temperature, found.top_p, found.top_k, found.min_p, found.repetition_penalty]


MODEL = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.05, "do_sample": True}


def test_openai_s_defaults_where_the_model_has_none(tmp_path: Path) -> None:
    for config in (None, {}, {"temperature": None, "eos_token_id": 7}):
        assert of_interest(params(tmp_path, config)) == [1.0, 1.0, 0, 0.0, 1.0]


def test_the_model_s_defaults_where_the_request_says_nothing(tmp_path: Path) -> None:
    assert of_interest(params(tmp_path, MODEL)) == [0.6, 0.95, 20, 0.01, 1.05]
    assert params(tmp_path, {"top_k": -1}).top_k == 0


def test_the_request_wins_also_with_values_that_mean_off(tmp_path: Path) -> None:
    neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert of_interest(params(tmp_path, MODEL, **neutral)) == [0.0, 1.0, 0, 0.0, 1.0]
    assert of_interest(params(tmp_path, MODEL, temperature=1.5)) == [1.5, 0.95, 20, 0.01, 1.05]


@pytest.mark.parametrize(
    "bad", [{"temperature": 50}, {"top_p": 0}, {"top_k": True}, {"repetition_penalty": "high"}, {"min_p": float("nan")}]
)
def test_a_default_that_no_request_could_have_is_left_out_with_a_warning(
    tmp_path: Path, bad: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert of_interest(params(tmp_path, bad)) == [1.0, 1.0, 0, 0.0, 1.0]
    (name,) = bad
    assert name in caplog.text
    assert "generation_config.json" in caplog.text
