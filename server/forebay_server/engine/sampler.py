"""Sampler: logits to token ids. Every row is treated by itself: what it draws does not depend on its batch mates."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from forebay_kernels import apply_bitmask
from forebay_server.engine.logit_rules import apply_logit_rules
from forebay_server.engine.random_numbers import uniform
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest
from forebay_server.messages import NOTHING_LEFT, TokenLogprobs

NUM_CANDIDATES = 1024
"""top_k and top_p look at so many of the likeliest tokens first; everything is sorted only when that is not enough."""
LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""
NOT_FINITE = "the model computed no finite logits for this request"


def sample(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> list[SampledToken]:
    """Pick the next token of each request.

    Args:
        logits: [num_requests, vocab_size], float32; changed in place.
        requests: in the order of the rows.

    Returns:
        One for each request; an error for rows with NaN or without any finite logit.
    """
    logprobs = _raw_logprobs(logits, requests)
    apply_logit_rules(logits, requests)
    _apply_grammar_masks(logits, requests)
    best, greedy_ids = logits.max(dim=-1)  # NaN wins; [num_requests]
    best_values: list[float] = best.tolist()
    is_sound = [math.isfinite(value) for value in best_values]
    token_ids: list[int] = greedy_ids.tolist()
    drawing = [row for row, request in enumerate(requests) if is_sound[row] and not _is_greedy(request)]
    if drawing:
        drawn = _draw(logits, best, drawing, requests)
        for row, token_id in zip(drawing, drawn, strict=True):
            token_ids[row] = token_id
    return [
        SampledToken(token_ids[row], _pick_logprobs(logprobs.get(row), token_ids[row], requests[row].sampling.logprobs))
        if is_sound[row]
        else SampledToken(error=_why_none(best_values[row], requests[row]))
        for row in range(len(requests))
    ]


def _apply_grammar_masks(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> None:
    """Forbid what grammars forbid: [num_requests, vocab_size] in place, from the first to the last constrained row."""
    mask_by_row = {row: request.mask for row, request in enumerate(requests) if request.mask is not None}
    if mask_by_row:
        span = range(min(mask_by_row), max(mask_by_row) + 1)
        words = np.full((len(span), (logits.shape[1] + 31) // 32), 0xFFFFFFFF, dtype=np.uint32)
        for row, mask in mask_by_row.items():
            words[row - span.start] = mask
        apply_bitmask(logits[span.start : span.stop], torch.from_numpy(words.view(np.int32)).to(logits.device))


def _why_none(best: float, request: ScheduledRequest) -> str:
    is_restricted = request.mask is not None or request.sampling.has_logit_rules
    return NOTHING_LEFT if best == -math.inf and is_restricted else NOT_FINITE


def _is_greedy(request: ScheduledRequest) -> bool:
    return request.sampling.is_greedy or request.sampling.top_k == 1


def _raw_logprobs(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> dict[int, torch.Tensor]:
    """Log-probabilities before masks, penalties and temperature, for the rows that ask: [vocab_size] each."""
    rows = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
    if not rows:
        return {}
    return dict(zip(rows, torch.log_softmax(logits[rows], dim=-1), strict=True))


def _pick_logprobs(logprobs: torch.Tensor | None, token_id: int, num_top: int | None) -> TokenLogprobs | None:
    if logprobs is None or num_top is None:
        return None
    return token_logprobs(logprobs.unsqueeze(0), [token_id], num_top)[0]


def token_logprobs(logprobs: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """What there is to tell of one token a row.

    Args:
        logprobs: [num_rows, vocab_size].
        token_ids: one a row.
        num_top: how many of the likeliest tokens to tell beside it.
    """
    logprobs = logprobs.clamp(min=LOWEST_LOGPROB)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device).unsqueeze(1)).squeeze(1)
    top_logprobs, top_ids = logprobs.topk(min(num_top, logprobs.shape[1]), dim=-1)
    rows = zip(chosen.tolist(), top_ids.tolist(), top_logprobs.tolist(), strict=True)
    return [TokenLogprobs(*row) for row in rows]


def _draw(
    logits: torch.Tensor, best: torch.Tensor, rows: Sequence[int], requests: Sequence[ScheduledRequest]
) -> list[int]:
    """Draw from softmax(logits / temperature), cut by top_k, top_p and min_p."""
    sampling = [requests[row].sampling for row in rows]
    draws = [
        uniform(request.seed, request.choice_index, request.num_output_tokens)
        for request in (requests[row] for row in rows)
    ]
    temperatures = logits.new_tensor([params.temperature for params in sampling]).unsqueeze(1)
    probabilities = torch.softmax((logits[list(rows)] - best[list(rows)].unsqueeze(1)) / temperatures, dim=-1)
    token_ids = [-1] * len(rows)
    whole = [index for index, params in enumerate(sampling) if params.top_k == 0 and params.top_p == 1]
    if whole:
        min_p = [sampling[index].min_p for index in whole]
        kept = _apply_min_p(probabilities[whole], min_p)
        for index, token_id in zip(whole, _invert(kept, [draws[index] for index in whole]), strict=True):
            token_ids[index] = token_id
    for index, params in enumerate(sampling):
        if token_ids[index] < 0:
            ranked, ids = _nucleus(probabilities[index], params.top_k, params.top_p)
            kept = _apply_min_p(ranked.unsqueeze(0), [params.min_p])
            token_ids[index] = int(ids[_invert(kept, [draws[index]])[0]])
    return token_ids


def _nucleus(probabilities: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens of one row: at most top_k, and of those the fewest that hold top_p of their probability.

    Args:
        probabilities: [vocab_size].
        top_k: 0 for all.
        top_p: 1 for all.

    Returns:
        Their probabilities, falling, and their ids.
    """
    vocab_size = probabilities.shape[0]
    num_wanted = min(top_k or vocab_size, vocab_size)
    ranked, ids = probabilities.topk(min(num_wanted, NUM_CANDIDATES))
    cumulated = ranked.double().cumsum(0)
    total = 1.0 if num_wanted == vocab_size else cumulated[-1].item()
    if num_wanted > NUM_CANDIDATES and (num_wanted < vocab_size or cumulated[-1] < top_p):
        ranked, ids = probabilities.sort(descending=True, stable=True)
        ranked, ids = ranked[:num_wanted], ids[:num_wanted]
        cumulated = ranked.double().cumsum(0)
        total = cumulated[-1].item()
    num_kept = int(torch.searchsorted(cumulated, top_p * total)) + 1 if top_p < 1 else num_wanted
    return ranked[:num_kept], ids[:num_kept]


def _apply_min_p(probabilities: torch.Tensor, min_p: Sequence[float]) -> torch.Tensor:
    """Zero what is less likely than min_p times the likeliest: [num_rows, n] -> the same shape."""
    if not any(min_p):
        return probabilities
    floor = probabilities.amax(dim=-1, keepdim=True) * probabilities.new_tensor(min_p).unsqueeze(1)
    return probabilities.masked_fill(probabilities < floor, 0)


def _invert(probabilities: torch.Tensor, draws: Sequence[float]) -> list[int]:
    """Where each draw falls in the row's cumulated probabilities, which need not add up to 1.

    Args:
        probabilities: [num_rows, n], not negative.
        draws: in [0, 1), one a row.

    Returns:
        The column of each row; never one with probability 0.
    """
    cumulated = probabilities.double().cumsum(dim=-1)
    targets = cumulated[:, -1] * cumulated.new_tensor(draws)
    columns: list[int] = torch.searchsorted(cumulated, targets.unsqueeze(1), right=True).squeeze(1).tolist()
    return columns
