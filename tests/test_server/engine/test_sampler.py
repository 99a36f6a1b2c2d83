"""The sampler: the right distribution, and rows that do not know of one another."""

import math
from typing import Any

import pytest
import torch

from forebay_server.engine.random_numbers import uniform
from forebay_server.engine.sampler import NUM_CANDIDATES, sample
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest
from forebay_server.sampling_params import SamplingParams

NUM_DRAWS = 4000


def row(
    *,
    seed: int = 0,
    choice_index: int = 0,
    position: int = 0,
    generated: tuple[int, ...] = (),
    prompt: tuple[int, ...] = (),
    **params: Any,
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id="r",
        token_ids=[1],
        context_len=0,
        block_ids=[0],
        is_sampled=True,
        sampling=SamplingParams(**{"max_tokens": 100} | params),
        seed=seed,
        choice_index=choice_index,
        num_output_tokens=position or len(generated),
        num_prompt_tokens=len(prompt),
        known_token_ids=[*prompt, *generated],
    )


def one(logits: list[float], **params: Any) -> SampledToken:
    return sample(torch.tensor([logits]), [row(**params)])[0]


def frequencies(logits: list[float], **params: Any) -> list[float]:
    """How often each token comes in many draws at different positions."""
    rows = [row(position=position, **params) for position in range(1, NUM_DRAWS + 1)]
    tokens = sample(torch.tensor([logits]).repeat(NUM_DRAWS, 1), rows)
    counts = [0] * len(logits)
    for token in tokens:
        counts[token.token_id] += 1
    return [count / NUM_DRAWS for count in counts]


def test_greedy_takes_the_likeliest_and_on_ties_the_lowest_id() -> None:
    assert one([0.0, 3.0, 1.0], temperature=0).token_id == 1
    assert one([0.0, 3.0, 3.0], temperature=1e-8).token_id == 1
    assert {one([0.0, 3.0, 3.0], temperature=1, top_k=1, seed=seed).token_id for seed in range(20)} == {1}


def test_draws_follow_the_softmax_at_a_temperature() -> None:
    logits = [1.0, 0.0, -1.0, 2.0]
    for temperature in (0.5, 1.0, 2.0):
        wanted = torch.softmax(torch.tensor(logits) / temperature, 0).tolist()
        assert frequencies(logits, temperature=temperature) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.51}, [0, 1]),
        ({"top_p": 0.85}, [0, 1, 2]),
        ({"top_k": 3, "top_p": 0.9}, [0, 1, 2]),
        ({"top_k": 2, "top_p": 0.99}, [0, 1]),
        ({"min_p": 0.5}, [0, 1]),
        ({"min_p": 0.2, "top_k": 3}, [0, 1, 2]),
    ],
)
def test_unlikely_tokens_are_cut_and_the_rest_keeps_its_proportions(params: dict[str, Any], kept: list[int]) -> None:
    probabilities = [0.5, 0.3, 0.15, 0.05]
    total = sum(probabilities[token] for token in kept)
    wanted = [probability / total if token in kept else 0 for token, probability in enumerate(probabilities)]
    logits = [math.log(probability) for probability in probabilities]
    assert frequencies(logits, temperature=1, **params) == pytest.approx(wanted, abs=0.03)


def test_cuts_are_the_same_where_more_than_the_candidates_are_needed() -> None:
    generator = torch.Generator().manual_seed(0)
    vocab_size = 4 * NUM_CANDIDATES
    logits = torch.randn(1, vocab_size, generator=generator) * 0.1  # flat: the nucleus is most of the vocabulary
    probabilities = torch.softmax(logits[0], 0)
    ranked, ids = probabilities.sort(descending=True)
    nucleus = set(ids[: int((ranked.cumsum(0) < 0.7).sum()) + 1].tolist())
    rows = [row(position=position, temperature=1, top_p=0.7) for position in range(1, 301)]
    drawn = {token.token_id for token in sample(logits.repeat(300, 1), rows)}
    assert drawn <= nucleus
    assert len(drawn) > 200
    top = set(ids[: 2 * NUM_CANDIDATES].tolist())
    rows = [row(position=position, temperature=1, top_k=2 * NUM_CANDIDATES) for position in range(1, 301)]
    drawn = {token.token_id for token in sample(logits.repeat(300, 1), rows)}
    assert drawn <= top
    assert not drawn <= set(ids[:NUM_CANDIDATES].tolist())


def test_draw_depends_on_its_own_row_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 500, generator=generator)
    rows = [
        row(seed=seed, temperature=0.5 + seed / 8, top_p=0.9 if seed % 2 else 1.0, top_k=50 if seed % 3 == 0 else 0)
        for seed in range(8)
    ]
    together = sample(logits.clone(), rows)
    alone = [sample(logits[index : index + 1].clone(), [rows[index]])[0] for index in range(8)]
    assert together == alone
    backwards = sample(logits.flip(0).clone(), rows[::-1])
    assert backwards == together[::-1]


def test_choices_and_positions_and_seeds_draw_differently_and_repeatably() -> None:
    keys = [(seed, choice, position) for seed in range(12) for choice in range(12) for position in range(12)]
    numbers = [uniform(*key) for key in keys]
    assert len(set(numbers)) == len(keys)
    assert numbers == [uniform(*key) for key in keys]
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.03)
    assert all(0 <= number < 1 for number in numbers)
    assert 0 <= uniform(-5, 0, 0) < 1
    assert uniform(1 << 63, 0, 0) != uniform(0, 0, 0)


def test_row_with_nan_fails_and_its_neighbours_do_not() -> None:
    logits = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [math.inf, 0.0], [-math.inf, -math.inf], [2.0, 1.0]])
    rows = [row(temperature=0), row(temperature=0), row(temperature=1), row(temperature=1), row(temperature=1, top_k=1)]
    tokens = sample(logits, rows)
    assert [token.error is None for token in tokens] == [True, False, False, False, True]
    assert (tokens[0].token_id, tokens[4].token_id) == (1, 0)


def test_end_tokens_are_masked_before_min_tokens() -> None:
    params = {"temperature": 0, "min_tokens": 2, "eos_token_ids": (1,), "stop_token_ids": (2, 999_999)}
    logits = [0.0, 5.0, 4.0, 1.0]
    assert [one(logits, position=position, **params).token_id for position in (0, 1, 2)] == [3, 3, 1]


def test_penalties_count_what_was_generated() -> None:
    logits = [2.0, 1.8, 0.0]
    assert one(logits, temperature=0).token_id == 0
    assert one(logits, temperature=0, presence_penalty=0.5, generated=(0,)).token_id == 1
    assert one(logits, temperature=0, presence_penalty=0.5, generated=(0, 1)).token_id == 0
    assert one(logits, temperature=0, frequency_penalty=0.5, generated=(0, 0, 1)).token_id == 1
    assert one(logits, temperature=0, presence_penalty=-2, generated=(2, 2)).token_id == 0


def test_repetition_penalty_counts_prompt_and_answer_and_the_others_the_answer_alone() -> None:
    logits = [2.0, 1.5, -1.0, -1.2]
    assert one(logits, temperature=0, repetition_penalty=1.5, prompt=(0,)).token_id == 1
    assert one(logits, temperature=0, repetition_penalty=1.5, prompt=(0,), generated=(1,)).token_id == 0
    assert one(logits, temperature=0, repetition_penalty=0.5, prompt=(1,)).token_id == 1
    assert one(logits[2:], temperature=0, repetition_penalty=1.5, prompt=(0,)).token_id == 1, "negative ones sink too"
    assert one(logits, temperature=0, presence_penalty=2, frequency_penalty=2, prompt=(0,)).token_id == 0


def test_biases_are_added_and_masks_cannot_be_undone_by_them() -> None:
    logits = [2.0, 1.5, 1.0]
    assert one(logits, temperature=0, logit_bias={2: 1.1}).token_id == 2
    assert one(logits, temperature=0, logit_bias={0: -100, 1: -100}).token_id == 2
    assert one(logits, temperature=0, allowed_token_ids=(1, 2), logit_bias={0: 100}).token_id == 1
    assert one(logits, temperature=0, bad_words=((0,),), logit_bias={0: 100}).token_id == 1
    assert one(logits, temperature=0, min_tokens=1, eos_token_ids=(0,), logit_bias={0: 100}).token_id == 1
    assert {one(logits, allowed_token_ids=(0, 2), seed=seed).token_id for seed in range(50)} == {0, 2}


@pytest.mark.parametrize(
    ("generated", "picked"), [((), 0), ((0,), 1), ((0, 0), 2), ((1, 0, 0), 2), ((0, 0, 1), 0), ((0, 1, 0), 1)]
)
def test_a_bad_word_is_stopped_at_its_last_token(generated: tuple[int, ...], picked: int) -> None:
    params = {"temperature": 0, "bad_words": ((0, 0), (0, 0, 1))}
    logits = [3.0, 2.0, 1.0]
    assert one(logits, generated=generated, prompt=(0, 0), **params).token_id == picked


def test_rules_that_leave_no_token_fail_their_row_alone() -> None:
    logits = torch.tensor([[2.0, 1.0], [2.0, 1.0]])
    stuck = row(allowed_token_ids=(0,), bad_words=((1, 0),), generated=(1,))  # only now: at the start it could pick 0
    tokens = sample(logits, [stuck, row(temperature=0)])
    assert "exclude every one" in (tokens[0].error or "")
    assert tokens[1].token_id == 0


def test_rows_with_rules_beside_rows_without() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, 50, generator=generator)
    rows = [
        row(temperature=0),
        row(temperature=0, logit_bias={7: 50}, logprobs=0),
        row(temperature=0, repetition_penalty=1.8, prompt=tuple(range(50))),
        row(temperature=1, seed=5, logprobs=1),
    ]
    together = sample(logits.clone(), rows)
    assert together == [sample(logits[index : index + 1].clone(), [rows[index]])[0] for index in range(4)]
    assert together[0].token_id == int(logits[0].argmax())
    assert together[1].token_id == 7
    assert together[1].logprobs is not None
    assert together[1].logprobs.chosen == pytest.approx(torch.log_softmax(logits[1], 0)[7].item())


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = [1.0, 3.0, 2.0, -math.inf]
    wanted = torch.log_softmax(torch.tensor(logits), 0).tolist()
    token = one(logits, temperature=0, logprobs=4, presence_penalty=2, generated=(1,))
    assert token.token_id == 2
    assert token.logprobs is not None
    assert token.logprobs.chosen == pytest.approx(wanted[2])
    assert token.logprobs.top_token_ids == [1, 2, 0, 3]
    assert token.logprobs.top_logprobs == pytest.approx([wanted[1], wanted[2], wanted[0], -9999.0])
    assert one(logits, temperature=0).logprobs is None
    assert one(logits, temperature=0, logprobs=0).logprobs is not None


def test_tiny_temperature_does_not_overflow() -> None:
    assert {one([1000.0, 999.0], temperature=1e-4, seed=seed).token_id for seed in range(20)} == {0}
