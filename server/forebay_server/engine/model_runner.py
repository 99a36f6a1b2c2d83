"""ModelRunner: SchedulerOutput to tensors to sampled tokens. No queues here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from forebay_server.engine.flat_batch import BatchPart, FlatBatch
from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.pooling import pool
from forebay_server.engine.prompt_scores import ROWS_AT_ONCE, score_prompt
from forebay_server.engine.sampler import sample
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput


class Runner(Protocol):
    """What the engine needs of a model runner."""

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """Compute a step: what was found for every request that is sampled, scores or pools, or an error."""
        ...


WaitForTokens = Callable[[], dict[str, SampledToken]]
"""Waits until the device has done a step: what `Runner.run` would have returned."""


@runtime_checkable
class OverlappingRunner(Runner, Protocol):
    """A runner whose device can be given a step before it has done the one before."""

    def launch(self, step: SchedulerOutput) -> WaitForTokens | None:
        """Start a step and return at once; None, and nothing started, when the host has to look at its logits.

        Tokens that are pending in it are those of the step that was launched last. At most two steps are started and
        not waited for.
        """
        ...


class ModelRunner:
    """Runs a model and samples.

    Args:
        forward: the model with its KV cache.
    """

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward

    @torch.inference_mode()
    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """See `Runner.run`."""
        requests = in_batch_order(step.requests)
        hidden = self._forward.compute(flat_batch(requests, step.new_block_ids))
        return find_tokens(requests, hidden, self._forward.logits)


def in_batch_order(requests: Iterable[ScheduledRequest]) -> list[ScheduledRequest]:
    """Decodes first, by growing context: rows that attend together lie together."""
    return sorted(requests, key=lambda request: (len(request.token_ids) > 1, request.context_len))


def find_tokens(
    requests: Sequence[ScheduledRequest],
    hidden: torch.Tensor,
    logits: Callable[[torch.Tensor], torch.Tensor],
    pick: Callable[[torch.Tensor, Sequence[ScheduledRequest]], list[SampledToken]] = sample,
) -> dict[str, SampledToken]:
    """What a batch found for every request that is sampled, scores or pools.

    Args:
        requests: of the batch, in its order.
        hidden: [len(rows), hidden_size], of the rows that `flat_batch` tells.
        logits: [n, hidden_size] -> [n, vocab_size]; called for as many rows at once as `logit_sizes` tells, in order.
        pick: the sampler.
    """
    sampled = [request for request in requests if request.is_sampled]
    found: dict[str, SampledToken] = {}
    if sampled:
        tokens = pick(logits(hidden[: len(sampled)]), sampled)
        found = {request.request_id: token for request, token in zip(sampled, tokens, strict=True)}
    row = len(sampled)
    for request in requests:
        if not request.scored_token_ids:
            continue
        scores = score_prompt(request, hidden[row : row + len(request.scored_token_ids)], logits)
        row += len(request.scored_token_ids)
        token = found.get(request.request_id)
        if token is not None and scores.error is None:
            scores = msgspec.structs.replace(token, prompt_logprobs=scores.prompt_logprobs)
        found[request.request_id] = scores
    return found | pool(requests, hidden[row:])


def logit_sizes(requests: Sequence[ScheduledRequest]) -> list[int]:
    """Of how many rows `find_tokens` wants logits at once, call by call, unless it gives up before."""
    num_sampled = sum(request.is_sampled for request in requests)
    sizes = [num_sampled] if num_sampled else []
    for request in requests:
        num_scored = len(request.scored_token_ids)
        sizes += [min(ROWS_AT_ONCE, num_scored - start) for start in range(0, num_scored, ROWS_AT_ONCE)]
    return sizes


def flat_batch(
    requests: Sequence[ScheduledRequest],
    new_block_ids: list[int],
    sampling_values: npt.NDArray[np.float32] | None = None,
    last_rows: Mapping[str, int] = MappingProxyType({}),
) -> FlatBatch:
    """The requests as one batch; its rows: of each sampled request, then of those that score, then of those that pool.

    Args:
        requests: in the order of the batch.
        new_block_ids: blocks with a new owner.
        sampling_values: see `FlatBatch`.
        last_rows: where the step before has the token of each request that it sampled.
    """
    num_tokens = 0
    pending: list[tuple[int, int]] = []
    sampled_rows: list[int] = []
    scored_rows: list[int] = []
    pooled_rows: list[int] = []
    parts = []
    for request in requests:
        if request.is_pending:
            pending.append((num_tokens, last_rows[request.request_id]))
        first_scored = num_tokens + request.first_scored_row
        scored_rows.extend(range(first_scored, first_scored + len(request.scored_token_ids)))
        num_tokens += len(request.token_ids)
        pooled_rows.extend(range(num_tokens - request.num_pooled_rows, num_tokens))
        parts.append(BatchPart(request.request_id, request.token_ids, request.context_len, request.block_ids))
        if request.is_sampled:
            sampled_rows.append(num_tokens - 1)
    return FlatBatch(new_block_ids, parts, sampled_rows + scored_rows + pooled_rows, sampling_values, pending)
