"""How steps are cut, told and understood, and that all ranks compute logits equally often whatever happens."""

from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
import torch

from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.scheduler_output import ScheduledRequest
from forebay_server.parallel.messages import BlockTables, ComputeStep, Found, FromRank, ToRank, decoder, encoder
from forebay_server.parallel.sampling import StepLostError, find_together, join_in
from forebay_server.parallel.stages import Stage, micro_batches, place_of, sampling_rank
from forebay_server.parallel.steps import Work, blocks_of, step_message, works_of_message, works_of_step
from forebay_server.sampling_params import SamplingParams

VOCAB_SIZE = 50


def request(name: str, num_tokens: int = 1, context_len: int = 40, **values: Any) -> ScheduledRequest:
    known: dict[str, Any] = {
        "block_ids": [1, 2, 3],
        "is_sampled": True,
        "sampling": SamplingParams(temperature=0),
        "seed": 5,
        "choice_index": 0,
        "num_output_tokens": 3,
    }
    return ScheduledRequest(
        request_id=name, token_ids=list(range(num_tokens)), context_len=context_len, **(known | values)
    )


@pytest.mark.parametrize(("num_layers", "count"), [(30, 2), (7, 3), (4, 4), (5, 1), (62, 8)])
def test_every_layer_is_in_one_stage_and_the_first_ones_have_more(num_layers: int, count: int) -> None:
    shares = [list(Stage(index, count).layers(num_layers)) for index in range(count)]
    assert list(chain.from_iterable(shares)) == list(range(num_layers))
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_places_of_ranks() -> None:
    places = [place_of(rank, tensor_size=2, num_stages=3) for rank in range(6)]
    assert [(stage.index, rank) for stage, rank in places] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert (sampling_rank(2, 3), sampling_rank(4, 1)) == (4, 0)


@pytest.mark.parametrize(
    ("num_tokens", "max_parts", "min_tokens", "sizes"),
    [
        ([1] * 8, 2, 4, [4, 4]),
        ([1] * 7, 2, 4, [7]),
        ([1] * 12, 4, 4, [4, 4, 4]),
        ([1, 1, 1, 500], 2, 16, [3, 500]),
        ([500, 1, 1, 1], 2, 16, [500, 3]),
        ([1] * 30 + [100, 100, 100], 2, 16, [130, 200]),
        ([512], 4, 16, [512]),
        ([40, 1, 1], 3, 1, [40, 1, 1]),
        ([], 2, 16, [0]),
    ],
)
def test_micro_batches_have_about_as_many_tokens(
    num_tokens: list[int], max_parts: int, min_tokens: int, sizes: list[int]
) -> None:
    parts = micro_batches(num_tokens, max_parts, min_tokens)
    assert [sum(num_tokens[part]) for part in parts] == sizes
    assert list(chain.from_iterable(num_tokens[part] for part in parts)) == num_tokens


def sent(message: ComputeStep) -> ComputeStep:
    """A message as it arrives."""
    arrived: ComputeStep = decoder(ToRank).decode(encoder().encode(message))
    return arrived


def test_batches_arrive_as_they_were_sent() -> None:
    """Blocks grow, change hands after a preemption, and requests come and go, in micro-batches of their own."""
    ours, theirs = BlockTables(), BlockTables()
    steps = [
        [("a", [1, 2]), ("b", [3])],
        [("a", [1, 2]), ("b", [3, 4])],
        [("b", [3, 4, 5])],
        [("a", [9, 2]), ("b", [3, 4, 5])],
        [("a", [9]), ("b", [7, 4, 5])],
    ]
    for number, step in enumerate(steps):
        micro = [[request(name, context_len=number, block_ids=list(blocks))] for name, blocks in step]
        works = works_of_step(micro, [number])
        found = works_of_message(sent(step_message(works, ours)), theirs)
        ours.remember(blocks_of(works))
        assert [work.batch for work in found] == [work.batch for work in works]
        assert [work.batch.new_block_ids for work in found] == [[number], [], []][: len(works)]
        assert not any(work.requests for work in found)


def test_only_what_changed_is_sent() -> None:
    """A request's list is its own and grows."""
    tables, blocks = BlockTables(), [1, 2]
    for more, told in (([], [1, 2]), ([], []), ([3], [3])):
        blocks += more
        works = works_of_step([[request("a", block_ids=blocks)], [request("b", block_ids=[8])]], [])
        assert step_message(works, tables).micro_batches[0].parts[0].more_block_ids == told
        tables.remember(blocks_of(works))


def test_the_rank_that_samples_gets_all_that_sampling_looks_at() -> None:
    mask = np.arange(2, dtype=np.uint32)
    asked = request("a", known_token_ids=[4, 5], sampling=SamplingParams(presence_penalty=1.0, top_k=3), mask=mask)
    chunk = request("b", num_tokens=9, is_sampled=False)
    works = works_of_step([[asked], [chunk]], [])
    first, second = works_of_message(sent(step_message(works, BlockTables(), with_requests=True)), BlockTables())
    (arrived,) = first.requests
    assert arrived.mask is not None
    assert np.array_equal(arrived.mask, mask)
    names = ("request_id", "token_ids", "sampling", "seed", "num_output_tokens", "known_token_ids", "is_sampled")
    assert all(getattr(arrived, name) == getattr(asked, name) for name in names)
    assert (first.logit_sizes, second.logit_sizes) == ([1], [])
    assert not second.requests  # nothing is wanted of it


class CountedLogits:
    """A forward pass that notes of how many rows logits were computed."""

    def __init__(self, fails_at: int | None = None, is_nan: bool = False) -> None:
        self.sizes: list[int] = []
        self.num_calls = 0
        self._fails_at, self._is_nan = fails_at, is_nan

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls - 1 == self._fails_at:
            raise RuntimeError("a peer is gone")
        self.sizes.append(len(hidden))
        return torch.full((len(hidden), VOCAB_SIZE), torch.nan if self._is_nan else 0.5)


def work_with_scores() -> tuple[Work, torch.Tensor]:
    scored = request("scored", num_tokens=70, context_len=0, scored_token_ids=[1] * 69)
    (work,) = works_of_step([[request("a"), scored]], [])
    return work, torch.zeros(len(work.batch.rows), 8)


@pytest.mark.parametrize("is_nan", [False, True])
def test_ranks_compute_logits_equally_often(is_nan: bool) -> None:
    """Scoring gives up at the first number that is none; the calls after it are made all the same."""
    work, hidden = work_with_scores()
    sampling, joining = CountedLogits(is_nan=is_nan), CountedLogits()
    found = find_together(cast(ForwardPass, sampling), work, hidden)
    join_in(cast(ForwardPass, joining), work, hidden)
    assert sampling.sizes == joining.sizes == [2, 32, 32, 5]
    assert (found["scored"].error is not None) == is_nan


def test_ranks_compute_logits_equally_often_when_sampling_fails() -> None:
    work, hidden = work_with_scores()
    work.requests[0].sampling = SamplingParams(logit_bias={VOCAB_SIZE: 1.0})
    sampling = CountedLogits()
    with pytest.raises(IndexError):
        find_together(cast(ForwardPass, sampling), work, hidden)
    assert sampling.sizes == [2, 32, 32, 5]


@pytest.mark.parametrize("fails_at", [0, 2])
def test_logits_that_fail_are_told_from_sampling_that_fails(fails_at: int) -> None:
    work, hidden = work_with_scores()
    forward = CountedLogits(fails_at)
    with pytest.raises(StepLostError, match="RuntimeError: a peer is gone"):
        find_together(cast(ForwardPass, forward), work, hidden)
    assert forward.num_calls == fails_at + 1  # waiting once more for a peer that is gone could take minutes


def test_tokens_come_back_as_they_were_found() -> None:
    message = Found({"a": find_together(cast(ForwardPass, CountedLogits()), *work_with_scores())["a"]})
    assert decoder(FromRank).decode(encoder().encode(message)) == message
