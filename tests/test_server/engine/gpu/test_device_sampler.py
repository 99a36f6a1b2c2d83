"""Sampling where the logits are: what the kernel is told, and which requests it serves."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from forebay_server.engine.gpu import device_sampler
from forebay_server.engine.gpu.device_sampler import sample_rows, samples_on_device, sampling_values
from forebay_server.engine.sampler import NOT_FINITE, sample
from forebay_server.engine.scheduler_output import ScheduledRequest
from forebay_server.sampling_params import SamplingParams

VOCAB_SIZE = 300


def request(seed: int = 1, num_output_tokens: int = 0, **sampling: Any) -> ScheduledRequest:
    return ScheduledRequest(
        request_id="r",
        token_ids=[1],
        context_len=0,
        block_ids=[0],
        is_sampled=True,
        sampling=SamplingParams(**sampling),
        seed=seed,
        choice_index=0,
        num_output_tokens=num_output_tokens,
    )


def rows_of(count: int) -> torch.Tensor:
    return torch.randn(count, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)) * 4


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.6},
        {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 1.5, "top_k": 1},
    ],
    ids=str,
)
def test_draws_follow_the_distribution_of_the_hosts_sampler(sampling: dict[str, Any]) -> None:
    """Both invert the same draws, one by token id and one by rank: other tokens, the same frequencies."""
    count = 600
    logits = rows_of(1).repeat(count, 1)
    requests = [request(seed=seed, **sampling) for seed in range(count)]
    found = [token.token_id for token in sample_rows(logits, torch.from_numpy(sampling_values(requests)))]
    expected = [token.token_id for token in sample(logits.clone(), requests)]
    frequencies = [np.bincount(ids, minlength=VOCAB_SIZE) / count for ids in (found, expected)]
    assert set(found) == set(expected) or float(np.abs(frequencies[0] - frequencies[1]).max()) < 0.06
    assert float(np.abs(frequencies[0] - frequencies[1]).sum()) < 0.35


def test_a_row_without_finite_logits_is_an_error_and_spoils_no_other() -> None:
    logits = rows_of(3)
    logits[1] = math.nan
    values = torch.from_numpy(sampling_values([request(temperature=0)] * 3))
    tokens = sample_rows(logits, values)
    assert [token.error for token in tokens] == [None, NOT_FINITE, None]
    assert tokens[2].token_id == int(logits[2].argmax())


def test_a_draw_that_rounds_to_one_stays_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sampler, "uniform", lambda *_: 1 - 2.0**-53)
    draws = sampling_values([request()])[3]
    assert draws[0] < 1


def test_large_token_ids_survive_the_way_back() -> None:
    logits = torch.zeros(1, 2**24 + 3)
    logits[0, 2**24 + 1] = 5
    assert sample_rows(logits, torch.from_numpy(sampling_values([request(temperature=0)])))[0].token_id == 2**24 + 1


def test_what_the_kernel_does_not_do_is_left_to_the_host() -> None:
    assert samples_on_device(request(top_k=3, top_p=0.5))
    assert not samples_on_device(request(logprobs=0))
    assert not samples_on_device(request(repetition_penalty=1.1))
    masked = request()
    masked.mask = np.zeros(10, dtype=np.uint32)
    assert not samples_on_device(masked)
