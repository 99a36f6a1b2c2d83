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


def sample_rows(logits: torch.Tensor, values: torch.Tensor) -> list[SampledToken]:
    """Pick the next token of each row, and wait for them.

    Args:
        logits: [num_rows, vocab_size], float32.
        values: [NUM_SAMPLING_VALUES, num_rows], float32, from `sampling_values`.

    Returns:
        One for each row; an error for rows without a finite logit.
    """
    temperatures, top_ps, min_ps, draws, top_ks = values
    token_ids, logprobs = sample(logits, temperatures, top_ks.view(torch.int32), top_ps, min_ps, draws)
    # one copy back: a float32 holds no token id of a large vocabulary, a float64 holds both
    found = torch.stack((token_ids.double(), logprobs.double()))
    ids, scores = found.cpu().numpy()
    return [
        SampledToken(int(token_id)) if is_sound else SampledToken(error=NOT_FINITE)
        for token_id, is_sound in zip(ids.tolist(), np.isfinite(scores).tolist(), strict=True)
    ]
