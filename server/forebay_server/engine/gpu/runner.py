"""GpuRunner: the runner of models that kernels compute; it samples where the logits are."""

from collections.abc import Sequence

import torch

from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.gpu.device_sampler import sample_rows, samples_on_device, sampling_values
from forebay_server.engine.model_runner import find_tokens, flat_batch, in_batch_order
from forebay_server.engine.sampler import sample
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput


class GpuRunner:
    """See `Runner`. How a row is sampled depends on its own request only, never on its batch.

    Args:
        forward: of a device where kernels compute.
    """

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward

    @torch.inference_mode()
    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """See `Runner.run`."""
        requests = in_batch_order(step.requests)
        values = sampling_values([request for request in requests if request.is_sampled])
        hidden = self._forward.compute(flat_batch(requests, step.new_block_ids, values))
        return find_tokens(requests, hidden, self._forward.logits, self._sample)

    @torch.inference_mode()
    def prepare_graphs(self, num_seqs: int) -> None:
        """Capture a decode step of so many of the longest sequences, where graphs are used."""
        self._forward.prepare_graphs(num_seqs)

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
