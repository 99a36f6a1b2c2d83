"""Sampling on the device, for requests that need nothing of their logits on the host."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from forebay_kernels import sample
from forebay_server.engine.flat_batch import NUM_SAMPLING_VALUES
from forebay_server.engine.random_numbers import uniform
from forebay_server.engine.sampler import NOT_FINITE
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest

_LARGEST_DRAW = np.nextafter(np.float32(1), np.float32(0))
"""A draw of 53 bits may round to 1, which is beyond the last token."""


def samples_on_device(request: ScheduledRequest) -> bool:
    """Whether the kernel does all that the request asks for: no masks, penalties or biases, no log-probabilities."""
    sampling = request.sampling
    return request.mask is None and sampling.logprobs is None and not sampling.has_logit_rules


def sampling_values(requests: Sequence[ScheduledRequest]) -> npt.NDArray[np.float32]:
    """What `sample_rows` needs: [NUM_SAMPLING_VALUES, num_requests]."""
    values = np.zeros((NUM_SAMPLING_VALUES, len(requests)), dtype=np.float32)
    temperatures, top_ps, min_ps, draws, top_ks = values
    top_ps[:] = 1
    for row, request in enumerate(requests):
        sampling = request.sampling
        if sampling.is_greedy or sampling.top_k == 1:
            continue  # temperature 0, whatever else is asked for
        temperatures[row] = sampling.temperature
        top_ps[row] = sampling.top_p
        min_ps[row] = sampling.min_p
        draws[row] = min(uniform(request.seed, request.choice_index, request.num_output_tokens), _LARGEST_DRAW)
        top_ks[row : row + 1].view(np.int32)[:] = sampling.top_k
    return values


def start_sampling(logits: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick the next token of each row, on the device; does not wait for it.

    Args:
        logits: [num_rows, vocab_size], float32.
        values: [NUM_SAMPLING_VALUES, num_rows], float32, from `sampling_values`.

    Returns:
        Token ids, [num_rows], int64, and their log-probabilities, [num_rows], float32; of a row without a finite logit
        any token of the vocabulary, since the next step may be given it before the host knows, and no finite number.
    """
    temperatures, top_ps, min_ps, draws, top_ks = values
    token_ids, logprobs = sample(logits, temperatures, top_ks.view(torch.int32), top_ps, min_ps, draws)
    return token_ids.clamp_(0, logits.shape[1] - 1), logprobs


def read_tokens(token_ids: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float32]) -> list[SampledToken]:
    """What `start_sampling` found, on the host: an error for rows without a finite logit."""
    return [
        SampledToken(token_id) if is_sound else SampledToken(error=NOT_FINITE)
        for token_id, is_sound in zip(token_ids.tolist(), np.isfinite(logprobs).tolist(), strict=True)
    ]


def sample_rows(logits: torch.Tensor, values: torch.Tensor) -> list[SampledToken]:
    """`start_sampling`, and wait for its tokens."""
    token_ids, logprobs = start_sampling(logits, values)
    return read_tokens(token_ids.cpu().numpy(), logprobs.cpu().numpy())
