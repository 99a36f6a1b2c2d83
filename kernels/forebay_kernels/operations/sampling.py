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
