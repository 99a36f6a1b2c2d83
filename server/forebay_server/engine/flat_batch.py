"""FlatBatch: what a forward pass computes, as plain data."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

NUM_SAMPLING_VALUES = 5
"""Numbers that a sampler on the device needs of each row."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What a step computes of one request."""

    request_id: str
    token_ids: list[int]
    """The new tokens."""
    context_len: int
    """Tokens before them."""
    block_ids: list[int]
    """For context and new tokens."""


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """What a step computes: parts with one new token first, by growing context, one after the other in one batch."""

    new_block_ids: list[int]
    """Blocks with a new owner, to be cleared before."""
    parts: list[BatchPart]
    rows: list[int]
    """The rows of the batch whose hidden states are wanted."""
    sampling_values: npt.NDArray[np.float32] | None = None
    """[NUM_SAMPLING_VALUES, rows that are sampled]: travels to the device with the batch; None: the host samples."""
    pending: list[tuple[int, int]] = field(default_factory=list)
    """(row, row of the tokens that the step before sampled): where that token belongs."""
