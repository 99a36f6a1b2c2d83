"""ModelRunner: SchedulerOutput to tensors to sampled tokens. No queues here."""

from typing import Protocol

import msgspec
import torch

from forebay_server.engine.forward_pass import BatchPart, FlatBatch, ForwardPass
from forebay_server.engine.pooling import pool
from forebay_server.engine.prompt_scores import score_prompt
from forebay_server.engine.sampler import sample
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput


class Runner(Protocol):
    """What the engine needs of a model runner."""

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """Compute a step: what was found for every request that is sampled, scores or pools, or an error."""
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
        requests = sorted(step.requests, key=_batch_order)
        sampled = [request for request in requests if request.is_sampled]
        scored = [request for request in requests if request.scored_token_ids]
        hidden = self._forward.compute(_flat_batch(requests, step.new_block_ids))
        found: dict[str, SampledToken] = {}
        if sampled:
            tokens = sample(self._forward.logits(hidden[: len(sampled)]), sampled)
            found = {request.request_id: token for request, token in zip(sampled, tokens, strict=True)}
        row = len(sampled)
        for request in scored:
            scores = score_prompt(request, hidden[row : row + len(request.scored_token_ids)], self._forward.logits)
            row += len(request.scored_token_ids)
            token = found.get(request.request_id)
            if token is not None and scores.error is None:
                scores = msgspec.structs.replace(token, prompt_logprobs=scores.prompt_logprobs)
            found[request.request_id] = scores
        return found | pool(requests, hidden[row:])


def _flat_batch(requests: list[ScheduledRequest], new_block_ids: list[int]) -> FlatBatch:
    """The requests as one batch; its rows: of each sampled request, then of those that score, then of those that pool.

    Args:
        requests: in the order of the batch.
        new_block_ids: blocks with a new owner.
    """
    num_tokens = 0
    sampled_rows: list[int] = []
    scored_rows: list[int] = []
    pooled_rows: list[int] = []
    parts = []
    for request in requests:
        first_scored = num_tokens + request.first_scored_row
        scored_rows.extend(range(first_scored, first_scored + len(request.scored_token_ids)))
        num_tokens += len(request.token_ids)
        pooled_rows.extend(range(num_tokens - request.num_pooled_rows, num_tokens))
        parts.append(BatchPart(request.request_id, request.token_ids, request.context_len, request.block_ids))
        if request.is_sampled:
            sampled_rows.append(num_tokens - 1)
    return FlatBatch(new_block_ids, parts, sampled_rows + scored_rows + pooled_rows)


def _batch_order(request: ScheduledRequest) -> tuple[bool, int]:
    """Decodes first, by growing context: rows that attend together lie together."""
    return len(request.token_ids) > 1, request.context_len
