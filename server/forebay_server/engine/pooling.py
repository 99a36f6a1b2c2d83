"""Embeddings: the hidden states of a prompt's tokens, added up over the steps that compute them."""

from collections.abc import Iterable

import torch

from forebay_server.engine.sampler import NOT_FINITE
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest


def pool(requests: Iterable[ScheduledRequest], hidden: torch.Tensor) -> dict[str, SampledToken]:
    """The part of each request's sum that this step has; the scheduler adds up and divides.

    Args:
        requests: of the step; those without pooling are skipped.
        hidden: [number of pooled rows, hidden_size], after the final norm, in the order of the requests.

    Returns:
        By request id, for those with rows in this step: `pooled`, or an error when it is not finite.
    """
    found: dict[str, SampledToken] = {}
    row = 0
    for request in requests:
        num_rows = request.num_pooled_rows
        if num_rows:
            total = hidden[row : row + num_rows].float().sum(dim=0)
            is_sound = bool(total.isfinite().all())
            found[request.request_id] = (
                SampledToken(pooled=total.tolist()) if is_sound else SampledToken(error=NOT_FINITE)
            )
            row += num_rows
    return found
