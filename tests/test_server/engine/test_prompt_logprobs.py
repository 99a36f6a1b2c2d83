"""Log-probabilities of prompt tokens: those of transformers, whatever is cached and however the prompt is cut."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from forebay_server import LLM, SamplingParams
from forebay_server.engine.prompt_scores import ROWS_AT_ONCE, score_prompt
from forebay_server.engine.scheduler_output import ScheduledRequest
from forebay_server.messages import TokenLogprobs
from tests.test_server.models.tiny_llama import save_tiny_llama

PROMPT = [7, 7, 7, 120, 8, *range(1, 70)]
SCORED = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True, logprobs=2, prompt_logprobs=2)
PLAIN = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def make_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), debug=True, **({"dtype": "float32", "kv_cache_tokens": 512} | options))


def chosen(entries: list[TokenLogprobs] | None) -> list[float]:
    assert entries is not None
    return [entry.chosen for entry in entries]


def test_they_are_the_teacher_forced_log_softmax_of_transformers(folder: Path) -> None:
    """vllm #5334."""
    (generation,) = make_llm(folder).generate([PROMPT], SCORED)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0, :-1], dim=-1)
    wanted = logprobs.gather(1, torch.tensor(PROMPT[1:]).unsqueeze(1)).squeeze(1).tolist()
    assert chosen(generation.prompt_logprobs) == pytest.approx(wanted, abs=1e-4)
    assert generation.prompt_logprobs is not None
    assert [entry.top_token_ids[0] for entry in generation.prompt_logprobs] == logprobs.argmax(-1).tolist()


def test_cold_and_hot_cache_say_the_same(folder: Path) -> None:
    """vllm #42019, #3251, #3914, #8268."""
    llm = make_llm(folder)
    (cold,) = llm.generate([PROMPT], SCORED)
    (plain,) = llm.generate([PROMPT], PLAIN)
    (hot,) = llm.generate([PROMPT], SCORED)
    assert len(cold.prompt_logprobs or []) == len(PROMPT) - 1
    assert hot == cold
    assert hot.num_cached_tokens == 0
    assert plain.num_cached_tokens == 64
    assert plain.token_ids == cold.token_ids
    assert plain.prompt_logprobs is None


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 7}, {"max_num_batched_tokens": 33}])
def test_chunks_say_the_same(folder: Path, options: dict[str, Any]) -> None:
    (whole,) = make_llm(folder).generate([PROMPT], SCORED)
    several = make_llm(folder, **options).generate([PROMPT, PROMPT[:30], PROMPT], SCORED)
    assert chosen(several[0].prompt_logprobs) == pytest.approx(chosen(whole.prompt_logprobs), abs=1e-4)
    assert chosen(several[1].prompt_logprobs) == pytest.approx(chosen(whole.prompt_logprobs)[:29], abs=1e-4)
    assert chosen(several[2].prompt_logprobs) == pytest.approx(chosen(whole.prompt_logprobs), abs=1e-4)


def test_an_answer_scored_as_a_prompt_has_the_log_probabilities_it_was_given(folder: Path) -> None:
    llm = make_llm(folder)
    (answer,) = llm.generate([PROMPT], SCORED)
    (again,) = llm.generate([PROMPT + answer.token_ids], SCORED)
    assert chosen(again.prompt_logprobs)[-3:] == pytest.approx(chosen(answer.logprobs), abs=1e-4)


def test_a_prompt_of_one_token_has_none(folder: Path) -> None:
    (generation,) = make_llm(folder).generate([[5]], SCORED)
    assert generation.prompt_logprobs == []


@pytest.mark.parametrize("num_tokens", [1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 5])
def test_a_long_prompt_is_scored_a_few_rows_at_a_time(num_tokens: int) -> None:
    """vllm #5907, #10325: the logits of all rows at once would not fit; NaN fails the request."""
    sizes = []

    def logits_of(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(hidden.shape[0])
        return hidden

    request = ScheduledRequest(
        request_id="r",
        token_ids=[1] * (num_tokens + 1),
        context_len=0,
        block_ids=[0],
        is_sampled=False,
        sampling=SCORED,
        seed=0,
        choice_index=0,
        num_output_tokens=0,
        scored_token_ids=[3] * num_tokens,
    )
    hidden = torch.randn(num_tokens, 10, generator=torch.Generator().manual_seed(0))
    found = score_prompt(request, hidden, logits_of)
    assert max(sizes) <= ROWS_AT_ONCE
    assert chosen(found.prompt_logprobs) == pytest.approx(torch.log_softmax(hidden, -1)[:, 3].tolist())
    hidden[-1, 5] = torch.nan
    assert "finite" in (score_prompt(request, hidden, logits_of).error or "")
