"""Two models' logits at the same positions to numbers for every token. Pure arithmetic in torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """What one prompt showed; every array has an entry for each scored token. Natural logarithms."""

    baseline_nll: Floats
    """-log p of the token that really comes, by the baseline."""
    candidate_nll: Floats
    kl: Floats
    """KL(baseline || candidate) of the whole next-token distribution, in nats; >= 0."""
    same_top1: npt.NDArray[np.bool_]
    """Whether both think the same token likeliest."""

    @property
    def num_tokens(self) -> int:
        """Scored tokens."""
        return len(self.kl)


def compare_logits(baseline: torch.Tensor, candidate: torch.Tensor, targets: Sequence[int]) -> PromptComparison:
    """Compare two models at n positions.

    Args:
        baseline: [n, vocab_size], logits.
        candidate: as `baseline`.
        targets: n token ids: those that really come next.

    Raises:
        ValueError: the shapes do not fit each other, or a logit is not finite.
    """
    if baseline.shape != candidate.shape or baseline.shape[0] != len(targets):
        raise ValueError(
            f"logits of {tuple(baseline.shape)} and {tuple(candidate.shape)} do not fit {len(targets)} tokens"
        )
    if not (baseline.isfinite().all() and candidate.isfinite().all()):
        raise ValueError("a model computes logits that are not finite")
    log_p = torch.log_softmax(baseline.double(), dim=-1)
    log_q = torch.log_softmax(candidate.double(), dim=-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1).clamp_min(0)
    rows = torch.tensor(list(targets), dtype=torch.int64).unsqueeze(1)
    return PromptComparison(
        baseline_nll=(-log_p.gather(1, rows).squeeze(1)).numpy(),
        candidate_nll=(-log_q.gather(1, rows).squeeze(1)).numpy(),
        kl=kl.numpy(),
        same_top1=(baseline.argmax(dim=-1) == candidate.argmax(dim=-1)).numpy(),
    )
