"""From logits to tokens, as callers see it. A row never sees another: what it draws does not depend on its batch."""

import torch

from forebay_kernels.checks import sampling as checks
from forebay_kernels.dispatch import implementation


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Forbid tokens: the mask of a grammar.

    Args:
        logits: [num_rows, vocab_size], float32, float16 or bfloat16; rows may lie apart. Written in place: -infinity
            where a token is forbidden.
        bitmask: [num_rows, ceil(vocab_size / 32)], int32, contiguous: token t is allowed where bit t % 32 of word
            t // 32 is 1. All ones (-1) for a row without a grammar.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    checks.check_apply_bitmask(logits, bitmask)
    implementation("apply_bitmask", logits.device.type)(logits, bitmask)


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    draws: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick one token a row, without sorting: thresholds are found by bisection over the bits of the probabilities.

    Penalties are the caller's to subtract before, and random numbers the caller's to draw: each from its request's own
    counter.

    Args:
        logits: [num_rows, vocab_size], float32, at least one finite in each row; rows may lie apart. Not written to.
        temperatures: [num_rows], float32, contiguous; 0: the likeliest token, whatever the others say.
        top_ks: [num_rows], int32, contiguous: how many of the likeliest are left; 0: all.
        top_ps: [num_rows], float32, contiguous: of those the fewest that hold this share of their probability; 1: all.
        min_ps: [num_rows], float32, contiguous: of those the ones at least this likely, relative to the likeliest; 0:
            all.
        draws: [num_rows], float32, contiguous, in [0, 1): where in the remaining probability, token after token, the
            choice falls.

    Returns:
        (token_ids, logprobs): [num_rows], int64, and [num_rows], float32: log softmax(logits) of the chosen token,
        before temperature and cuts.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (logits, temperatures, top_ks, top_ps, min_ps, draws)
    checks.check_sample(*arguments)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("sample", logits.device.type)(*arguments)
    return outputs


def verify_draft(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_rows: torch.Tensor,
    accept_draws: torch.Tensor,
    draws: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept as many drafted tokens as keep the target's distribution exact, and draw the one after them.

    Args:
        target_probs: [num_rows, vocab_size], float32, contiguous: the target's probabilities after temperature and
            cuts. A sequence with n drafts has n + 1 rows: one that each draft answers to, and one for what follows.
        draft_token_ids: [num_rows], int64, contiguous: the draft of each row; that of a sequence's last row is not
            looked at.
        cu_rows: [num_seqs + 1], int32, contiguous: where each sequence's rows start, and num_rows. At least one row a
            sequence.
        accept_draws: [num_rows], float32, contiguous, in [0, 1): decides about each row's draft.
        draws: [num_seqs], float32, contiguous, in [0, 1): where in the remaining probability, token after token, the
            token after the accepted ones falls. From another counter than accept_draws.
        draft_probs: like target_probs, what each draft was drawn from; None: drafts that were not drawn (n-grams).

    Returns:
        (token_ids, num_accepted): [num_rows], int64: of each sequence the accepted drafts, one more token, then -1;
        [num_seqs], int32.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (target_probs, draft_token_ids, cu_rows, accept_draws, draws, draft_probs)
    checks.check_verify_draft(*arguments)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("verify_draft", target_probs.device.type)(*arguments)
    return outputs
