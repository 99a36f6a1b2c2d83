"""GpuRunner: the runner of models that kernels compute; it samples where the logits are."""

from collections.abc import Sequence

import torch

from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.gpu.device_sampler import (
    read_tokens,
    sample_rows,
    samples_on_device,
    sampling_values,
    start_sampling,
)
from forebay_server.engine.gpu.readback import Readback
from forebay_server.engine.model_runner import WaitForTokens, find_tokens, flat_batch, in_batch_order
from forebay_server.engine.sampler import sample
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput


class GpuRunner:
    """See `OverlappingRunner`. How a row is sampled depends on its own request only, never on its batch.

    Args:
        forward: of a device where kernels compute.
    """

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward
        self._readback = Readback(forward.device)
        self._last_rows: dict[str, int] = {}
        """Where `_last_token_ids` has the token of each request."""
        self._last_token_ids: torch.Tensor | None = None
        """[n], int64, on the device: what the step sampled that was launched last."""

    @torch.inference_mode()
    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """See `Runner.run`."""
        requests = in_batch_order(step.requests)
        hidden = self._compute(requests, step.new_block_ids)
        return find_tokens(requests, hidden, self._forward.logits, self._sample)

    @torch.inference_mode()
    def launch(self, step: SchedulerOutput) -> WaitForTokens | None:
        """See `OverlappingRunner.launch`."""
        requests = in_batch_order(step.requests)
        if not all(map(_needs_only_device, requests)):
            return None
        hidden = self._compute(requests, step.new_block_ids)
        sampled = [request.request_id for request in requests if request.is_sampled]
        if not sampled:
            return dict
        self._last_token_ids, scores = start_sampling(self._forward.logits(hidden), self._forward.sampling_values)
        self._last_rows = {request_id: row for row, request_id in enumerate(sampled)}
        wait = self._readback.start(self._last_token_ids, scores)
        return lambda: dict(zip(sampled, read_tokens(*wait()), strict=True))

    @torch.inference_mode()
    def prepare_graphs(self, num_seqs: int) -> None:
        """Capture a decode step of so many of the longest sequences, where graphs are used."""
        self._forward.prepare_graphs(num_seqs)

    def _compute(self, requests: Sequence[ScheduledRequest], new_block_ids: list[int]) -> torch.Tensor:
        """Start the model: [number of wanted rows, hidden_size]."""
        values = sampling_values([request for request in requests if request.is_sampled])
        batch = flat_batch(requests, new_block_ids, values, self._last_rows)
        hidden = self._forward.compute(batch, last_token_ids=self._last_token_ids)
        self._last_rows, self._last_token_ids = {}, None
        return hidden

    def _sample(self, logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> list[SampledToken]:
        """Pick the next token of each request: [num_requests, vocab_size], float32, changed in place."""
        on_host = [row for row, request in enumerate(requests) if not samples_on_device(request)]
        if len(on_host) == len(requests):
            return sample(logits, requests)
        tokens = sample_rows(logits, self._forward.sampling_values)
        if on_host:
            found = sample(logits[on_host], [requests[row] for row in on_host])
            for row, token in zip(on_host, found, strict=True):
                tokens[row] = token
        return tokens


def _needs_only_device(request: ScheduledRequest) -> bool:
    """Whether the host has nothing to do for it but to take its token."""
    return samples_on_device(request) and not request.scored_token_ids and request.pooling is None
