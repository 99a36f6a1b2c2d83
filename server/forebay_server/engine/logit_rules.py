"""What a request asks to be done to its logits before a token is picked: penalties, biases, then masks."""

from collections import Counter
from collections.abc import Sequence

import torch

from forebay_server.engine.scheduler_output import ScheduledRequest
from forebay_server.sampling_params import SamplingParams


def apply_logit_rules(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> None:
    """Change the rows of the requests that ask for it; the others are not looked at.

    Masks come last, so that no bias undoes one.

    Args:
        logits: [num_requests, vocab_size], float32; changed in place.
        requests: in the order of the rows.
    """
    for row, request in enumerate(requests):
        if request.sampling.has_logit_rules:
            _apply_penalties(logits[row], request)
            _apply_masks(logits[row], request)


def _apply_penalties(logits: torch.Tensor, request: ScheduledRequest) -> None:
    """Make tokens that were seen before less likely, and add the biases: [vocab_size] in place."""
    sampling = request.sampling
    if sampling.repetition_penalty != 1:
        seen = _index(set(request.known_token_ids), logits)
        values = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = Counter(_generated(request))
        penalties = [sampling.presence_penalty + sampling.frequency_penalty * count for count in counts.values()]
        logits[list(counts)] -= logits.new_tensor(penalties)
    if sampling.logit_bias:
        logits[list(sampling.logit_bias)] += logits.new_tensor(list(sampling.logit_bias.values()))


def _apply_masks(logits: torch.Tensor, request: ScheduledRequest) -> None:
    """Forbid what is not allowed, what would complete a bad word, and ends before min_tokens: [vocab_size] in place."""
    sampling = request.sampling
    if sampling.allowed_token_ids:
        allowed = _index(sampling.allowed_token_ids, logits)
        kept = logits[allowed]
        logits.fill_(-torch.inf)
        logits[allowed] = kept
    forbidden = _ends_of_bad_words(sampling, _generated(request))
    if request.num_output_tokens < sampling.min_tokens:
        forbidden |= {*sampling.stop_token_ids, *sampling.eos_token_ids}
    logits[_index({token_id for token_id in forbidden if 0 <= token_id < logits.shape[0]}, logits)] = -torch.inf


def _ends_of_bad_words(sampling: SamplingParams, generated: Sequence[int]) -> set[int]:
    """The last tokens of the words whose other tokens were just generated."""
    return {
        word[-1]
        for word in sampling.bad_words
        if len(word) <= len(generated) + 1 and tuple(generated[len(generated) - len(word) + 1 :]) == word[:-1]
    }


def _generated(request: ScheduledRequest) -> list[int]:
    return request.known_token_ids[request.num_prompt_tokens :]


def _index(token_ids: Sequence[int] | set[int], logits: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64, device=logits.device)
