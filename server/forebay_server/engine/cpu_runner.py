"""CpuRunner: SchedulerOutput to one call of the C++ step to sampled tokens. No queues here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from forebay_kernels.cpu.llama_step import LlamaStep, StepBatch
from forebay_server.engine.pooling import pool
from forebay_server.engine.prompt_scores import score_prompt
from forebay_server.engine.sampler import NOT_FINITE, sample
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput


class CpuRunner:
    """Runs one model in the C++ library.

    Blocks that get a new owner are not cleared: the step reads no slot that was not written.

    Args:
        step: with weights and KV cache.
    """

    def __init__(self, step: LlamaStep) -> None:
        self._step = step

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """See `Runner.run`."""
        requests = step.requests
        sampled = [request for request in requests if request.is_sampled]
        if any(request.scored_token_ids or request.pooling for request in requests):
            return self._run_with_hidden(requests, sampled)
        batch = build_batch(requests).arrays()
        if all(map(_takes_best, sampled)):
            ids, logits = self._step.best(batch)
            tokens = [
                SampledToken(token_id) if math.isfinite(logit) else SampledToken(error=NOT_FINITE)
                for token_id, logit in zip(ids.tolist(), logits.tolist(), strict=True)
            ]
        else:
            with torch.inference_mode():
                tokens = sample(self._step.logits(batch), sampled)
        return {request.request_id: token for request, token in zip(sampled, tokens, strict=True)}

    @torch.inference_mode()
    def _run_with_hidden(
        self, requests: Sequence[ScheduledRequest], sampled: list[ScheduledRequest]
    ) -> dict[str, SampledToken]:
        """For steps with requests that score their prompt or pool: their rows' hidden states first."""
        layout = build_batch(requests)
        scored = [request for request in requests if request.scored_token_ids]
        layout.wanted_rows += layout.scored_rows + layout.pooled_rows
        hidden = self._step.hidden(layout.arrays())
        tokens = sample(self._step.head(hidden[: len(sampled)]), sampled) if sampled else []
        found = {request.request_id: token for request, token in zip(sampled, tokens, strict=True)}
        row = len(sampled)
        for request in scored:
            num_scored = len(request.scored_token_ids)
            scores = score_prompt(request, hidden[row : row + num_scored], self._step.head)
            row += num_scored
            token = found.get(request.request_id)
            if token is not None and scores.error is None:
                scores = msgspec.structs.replace(token, prompt_logprobs=scores.prompt_logprobs)
            found[request.request_id] = scores
        return found | pool(requests, hidden[row:])


@dataclass(slots=True)
class BatchLayout:
    """The rows of a step, as lists; requests in their order."""

    token_ids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    context_lens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    block_offsets: list[int] = field(default_factory=list)
    wanted_rows: list[int] = field(default_factory=list)
    """At first: the last row of each request that is sampled."""
    scored_rows: list[int] = field(default_factory=list)
    pooled_rows: list[int] = field(default_factory=list)

    def arrays(self) -> StepBatch:
        """What the step takes."""
        lists = (
            self.token_ids,
            self.starts,
            self.context_lens,
            self.blocks,
            self.block_offsets,
            self.wanted_rows,
        )
        return StepBatch(*(np.array(values, dtype=np.int32) for values in lists))


def build_batch(requests: Sequence[ScheduledRequest]) -> BatchLayout:
    """Lay out a step."""
    layout = BatchLayout()
    for request in requests:
        first = layout.starts[-1]
        end = first + len(request.token_ids)
        layout.token_ids += request.token_ids
        layout.starts.append(end)
        layout.context_lens.append(request.context_len)
        layout.block_offsets.append(len(layout.blocks))
        layout.blocks += request.block_ids
        if request.is_sampled:
            layout.wanted_rows.append(end - 1)
        if request.scored_token_ids:
            first_scored = first + request.first_scored_row
            layout.scored_rows.extend(range(first_scored, first_scored + len(request.scored_token_ids)))
        layout.pooled_rows.extend(range(end - request.num_pooled_rows, end))
    return layout


def _takes_best(request: ScheduledRequest) -> bool:
    """Whether the request's next token is the likeliest one and nothing else is wanted of the logits."""
    sampling = request.sampling
    is_greedy = sampling.is_greedy or sampling.top_k == 1
    return is_greedy and request.mask is None and sampling.logprobs is None and not sampling.has_logit_rules
