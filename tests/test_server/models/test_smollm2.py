"""SmolLM2-135M-Instruct from its GGUF file, token for token against transformers in float32."""

from pathlib import Path
from typing import Any

import pytest

from forebay_server import LLM, SamplingParams
from tests.test_server.models.reference import NEAR_TIE, Reference, english_texts

pytestmark = pytest.mark.model

NUM_PROMPTS = 20
NUM_NEW_TOKENS = 8
BFLOAT16_GAP = 0.75
"""In bfloat16 another token may be picked only where the reference's two candidates are this close."""
GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0, ignore_eos=True)

Answers = list[list[int]]


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> LLM:
    return LLM(str(smollm2), dtype="float32", kv_cache_tokens=16384)


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    """20 prompts of 10 to 500 tokens, all different."""
    lengths = [10 + 490 * index // (NUM_PROMPTS - 1) for index in range(NUM_PROMPTS)]
    token_ids = llm.tokenizer.encode("\n\n".join(english_texts()))
    starts = [sum(lengths[:index]) for index in range(NUM_PROMPTS)]
    return [token_ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]


@pytest.fixture(scope="module")
def alone(llm: LLM, prompts: list[list[int]]) -> Answers:
    """Every prompt by itself, without help from the prefix cache."""
    answers = []
    for prompt in prompts:
        answers.append(generate(llm, [prompt])[0])
        llm.engine.scheduler.reset_prefix_cache()
    return answers


def generate(llm: LLM, prompts: list[list[int]], sampling: SamplingParams = GREEDY) -> Answers:
    return [generation.token_ids for generation in llm.generate(prompts, sampling)]


def count_near_ties(reference: Reference, prompts: list[list[int]], answers: Answers) -> int:
    """Compare token for token; returns how many near ties went the other way."""
    near_ties = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        for difference in reference.differences(prompt, answer):
            assert difference.gap <= NEAR_TIE, f"prompt of {len(prompt)} tokens: {difference}"
            near_ties += 1
    return near_ties


def test_prompts_are_those_that_are_promised(prompts: list[list[int]]) -> None:
    assert (len(prompts[0]), len(prompts[-1])) == (10, 500)
    assert len({tuple(prompt) for prompt in prompts}) == NUM_PROMPTS


def test_float32_greedy_alone_equals_the_reference(
    reference: Reference, prompts: list[list[int]], alone: Answers
) -> None:
    near_ties = count_near_ties(reference, prompts, alone)
    print(f"{near_ties} near ties in {NUM_PROMPTS * NUM_NEW_TOKENS} tokens")
    assert near_ties <= 5


def test_float32_greedy_in_a_batch_of_16_equals_alone(
    llm: LLM, reference: Reference, prompts: list[list[int]], alone: Answers
) -> None:
    llm.engine.scheduler.reset_prefix_cache()
    together = generate(llm, prompts[:16]) + generate(llm, prompts[16:])
    changed = [index for index in range(NUM_PROMPTS) if together[index] != alone[index]]
    count_near_ties(reference, [prompts[index] for index in changed], [together[index] for index in changed])
    assert len(changed) <= 1


def test_hot_prefix_cache_changes_nothing(llm: LLM, prompts: list[list[int]], alone: Answers) -> None:
    some = prompts[4:8]
    generate(llm, some)
    hot = llm.generate(some, GREEDY)
    assert [generation.token_ids for generation in hot] == alone[4:8]
    assert all(generation.num_cached_tokens >= len(generation.prompt_token_ids) - 16 for generation in hot)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"max_num_batched_tokens": 48}, id="small chunks"),
        pytest.param({"kv_cache_tokens": 320, "max_model_len": 320}, id="preempted"),
    ],
)
def test_scheduling_changes_nothing(
    smollm2: Path, prompts: list[list[int]], alone: Answers, options: dict[str, Any]
) -> None:
    llm = LLM(str(smollm2), debug=True, **({"dtype": "float32", "kv_cache_tokens": 4096} | options))
    assert generate(llm, prompts[2:6]) == alone[2:6]


def test_safetensors_folder_answers_like_the_gguf_file(
    tmp_path: Path, reference: Reference, prompts: list[list[int]], alone: Answers
) -> None:
    llm = LLM(str(reference.save(tmp_path)), dtype="float32", kv_cache_tokens=4096)
    assert generate(llm, prompts[:4]) == alone[:4]


def test_bfloat16_differs_only_where_the_reference_hesitates(
    smollm2: Path, reference: Reference, prompts: list[list[int]]
) -> None:
    llm = LLM(str(smollm2), quantization="none", kv_cache_tokens=8192)
    assert llm.facts.ready_message().dtype == "bfloat16"
    some = prompts[::2]
    for prompt, answer in zip(some, generate(llm, some), strict=True):
        for difference in reference.differences(prompt, answer):
            assert difference.gap <= BFLOAT16_GAP, f"prompt of {len(prompt)} tokens: {difference}"


def test_text_in_text_out(llm: LLM) -> None:
    (generation,) = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8, temperature=0))
    assert generation.text is not None
    assert "Paris" in generation.text


def test_seeded_text_does_not_depend_on_batch_mates(llm: LLM, prompts: list[list[int]]) -> None:
    seeded = SamplingParams(max_tokens=10, temperature=1.0, top_p=0.95, seed=5, ignore_eos=True)
    unseeded = SamplingParams(max_tokens=10, temperature=1.0, ignore_eos=True)
    (by_itself,) = generate(llm, [prompts[1]], seeded)
    params = [unseeded] * 4 + [seeded] + [unseeded] * 3
    in_company = llm.generate([*prompts[2:6], prompts[1], *prompts[6:9]], params)
    assert in_company[4].token_ids == by_itself
