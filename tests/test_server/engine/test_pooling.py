"""Embeddings: the hidden states of transformers, however the prompt is cut, cached or interrupted."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import LlamaModel

from forebay_server import LLM, SamplingParams
from forebay_server.llm import GenerationError
from forebay_server.messages import AddRequest, Pooling, RequestOutput
from tests.test_server.models.tiny_llama import save_tiny_llama

PROMPTS = [[7, 7, 7, 120, 8, *range(1, 70)], [5], list(range(1, 17)), list(range(100, 1, -1))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def make_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), debug=True, **({"dtype": "float32", "kv_cache_tokens": 512} | options))


def embed(llm: LLM, prompts: list[list[int]], pooling: Pooling) -> list[list[float]]:
    """Through the engine itself, with two choices being generated beside."""
    for index, prompt in enumerate(prompts):
        llm.engine.add(
            AddRequest(request_id=f"e{index}", prompt_token_ids=prompt, sampling=SamplingParams(), pooling=pooling)
        )
    for index in range(2):
        sampling = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        llm.engine.add(AddRequest(request_id=f"g{index}", prompt_token_ids=[3, 4], sampling=sampling))
    outputs: dict[str, list[RequestOutput]] = {}
    while llm.engine.has_work:
        for output in llm.engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    assert all(len(outputs[f"g{index}"]) == 20 for index in range(2))
    found = []
    for index in range(len(prompts)):
        (output,) = outputs[f"e{index}"]
        assert output.error is None
        assert output.token_ids == []
        found.append(cast(list[float], output.embedding))
    assert llm.engine.scheduler.pool.num_held == 0
    return found


def reference(folder: Path, prompt: list[int], pooling: Pooling) -> list[float]:
    model = LlamaModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        hidden = model(torch.tensor([prompt])).last_hidden_state[0]
    vector: list[float] = (hidden[-1] if pooling == "last" else hidden.mean(dim=0)).tolist()
    return vector


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 33},
        {"kv_cache_tokens": 112, "max_num_batched_tokens": 24},  # prompts are preempted in the middle
    ],
)
def test_vectors_are_those_of_transformers(folder: Path, pooling: Pooling, options: dict[str, Any]) -> None:
    llm = make_llm(folder, **options)
    for _ in range(2):  # cold, then with the prefix cache
        for prompt, vector in zip(PROMPTS, embed(llm, PROMPTS, pooling), strict=True):
            assert vector == pytest.approx(reference(folder, prompt, pooling), abs=1e-4)


def test_a_prompt_may_fill_the_whole_context_and_no_more(folder: Path) -> None:
    llm = make_llm(folder, max_model_len=64)
    prompt = [index % 100 for index in range(64)]
    (vector,) = embed(llm, [prompt], "mean")
    assert vector == pytest.approx(reference(folder, prompt, "mean"), abs=1e-4)
    llm.engine.add(
        AddRequest(request_id="long", prompt_token_ids=[*prompt, 1], sampling=SamplingParams(), pooling="last")
    )
    assert "65 tokens" in (llm.engine.step()[0].error or "")
    with pytest.raises(GenerationError, match="64 tokens"):
        llm.generate([prompt])


def test_a_prompt_alone_is_computed_and_scored_and_nothing_is_sampled(folder: Path) -> None:
    llm = make_llm(folder, max_num_batched_tokens=24)
    sampling = SamplingParams(prompt_logprobs=1, max_tokens=1)
    (wanted,) = llm.generate([PROMPTS[0]], sampling)
    llm.engine.scheduler.take_counters()
    for scored in (sampling, SamplingParams()):
        llm.engine.add(AddRequest(request_id="p", prompt_token_ids=PROMPTS[0], sampling=scored, pooling="none"))
        outputs = [output for _ in range(20) for output in (llm.engine.step() if llm.engine.has_work else [])]
        assert [output.finish_reason for output in outputs] == ["stop"]
        assert outputs[0].token_ids == outputs[0].embedding == []
        assert outputs[0].prompt_logprobs == (wanted.prompt_logprobs if scored is sampling else None)
    assert llm.engine.scheduler.take_counters().new_generation_tokens == 0
