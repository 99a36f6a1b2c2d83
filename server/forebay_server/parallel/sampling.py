"""Logits and tokens of a batch whose output layer several ranks share: all compute the logits, one of them samples."""

from collections.abc import Iterator

import torch

from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.model_runner import find_tokens
from forebay_server.engine.scheduler_output import SampledToken
from forebay_server.parallel.steps import Work


class StepLostError(Exception):
    """What all ranks compute together has failed on this one: they no longer are at the same place."""


def find_together(forward: ForwardPass, work: Work, hidden: torch.Tensor) -> dict[str, SampledToken]:
    """See `find_tokens`, on the rank that samples; the others call `join_in` meanwhile.

    Args:
        forward: of this rank.
        work: with its requests.
        hidden: [len(rows), hidden_size].

    Raises:
        StepLostError: the logits cannot be computed. After any other exception the ranks are where they should be.
    """
    calls = _LogitCalls(forward, work, hidden)
    try:
        return find_tokens(work.requests, hidden, calls)
    finally:
        calls.finish()


def join_in(forward: ForwardPass, work: Work, hidden: torch.Tensor) -> None:
    """Compute this rank's part of the logits that the rank that samples wants."""
    for rows in _rows(work):
        forward.logits(hidden[rows])


class _LogitCalls:
    """Computes logits as often as the other ranks do, even when sampling gives up before its last call."""

    def __init__(self, forward: ForwardPass, work: Work, hidden: torch.Tensor) -> None:
        self._forward, self._hidden = forward, hidden
        self._rows = _rows(work)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = next(self._rows)
        if len(hidden) != rows.stop - rows.start:
            raise StepLostError(f"logits of {len(hidden)} rows are wanted, the other ranks compute {rows}")
        return self._compute(hidden)

    def finish(self) -> None:
        """Make the calls that are left; none after one has failed."""
        for rows in self._rows:
            self._compute(self._hidden[rows])

    def _compute(self, hidden: torch.Tensor) -> torch.Tensor:
        try:
            return self._forward.logits(hidden)
        except Exception as error:  # whatever it is, the other ranks wait in a collective that this one left
            self._rows = iter(())
            raise StepLostError(f"{type(error).__name__}: {error}") from error


def _rows(work: Work) -> Iterator[slice]:
    """The rows of each call."""
    start = 0
    for size in work.logit_sizes:
        yield slice(start, start + size)
        start += size
