"""Log-probabilities of prompt tokens, a few rows at a time: the logits of a whole prompt could fill the memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from forebay_server.engine.sampler import NOT_FINITE, token_logprobs
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest
from forebay_server.messages import TokenLogprobs

ROWS_AT_ONCE = 32

_watcher: ContextVar[Callable[[torch.Tensor], None] | None] = ContextVar("_watcher", default=None)


@contextmanager
def watch_scored_logits(watch: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Meanwhile `watch` sees every block of logits that scores a prompt, [n, vocab_size], in order: for evaluations."""
    token = _watcher.set(watch)
    try:
        yield
    finally:
        _watcher.reset(token)


def score_prompt(
    request: ScheduledRequest, hidden: torch.Tensor, compute_logits: Callable[[torch.Tensor], torch.Tensor]
) -> SampledToken:
    """The log-probabilities of the request's `scored_token_ids`, of the model's raw distribution.

    Args:
        request: that asks for prompt_logprobs.
        hidden: [number of scored tokens, hidden_size], of the tokens before them.
        compute_logits: [n, hidden_size] -> [n, vocab_size].

    Returns:
        `prompt_logprobs` without a token; an error when one is not finite.
    """
    found: list[TokenLogprobs] = []
    token_ids = request.scored_token_ids
    for start in range(0, len(token_ids), ROWS_AT_ONCE):
        logits = compute_logits(hidden[start : start + ROWS_AT_ONCE])
        watch = _watcher.get()
        if watch is not None:
            watch(logits)
        if logits.isnan().any():
            return SampledToken(error=NOT_FINITE)
        logprobs = torch.log_softmax(logits, dim=-1)
        found += token_logprobs(
            logprobs, token_ids[start : start + ROWS_AT_ONCE], request.sampling.prompt_logprobs or 0
        )
    return SampledToken(prompt_logprobs=found)
