"""RMS normalisation, as callers see it."""

import torch

from forebay_kernels.checks import norms as checks
from forebay_kernels.dispatch import implementation


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide each row of x by its root mean square, round to the dtype of x, then multiply by weight.

    Args:
        x: [num_tokens, hidden_size], float32, float16 or bfloat16; elements of a row adjacent, rows may lie apart.
        weight: [hidden_size], dtype and device of x, contiguous.
        eps: added to the mean square before the root; at least 0.

    Returns:
        [num_tokens, hidden_size], dtype of x, contiguous. Statistics are float32.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    checks.check_rms_norm(x, weight)
    normed: torch.Tensor = implementation("rms_norm", x.device.type)(x, weight, eps)
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add x to the residual stream and normalise the sum: one pass over memory where two calls would need two.

    Args:
        x: [num_tokens, hidden_size], float32, float16 or bfloat16; elements of a row adjacent, rows may lie apart.
        residual: like x in shape, dtype and device. Not written to.
        weight: [hidden_size], dtype and device of x, contiguous.
        eps: added to the mean square before the root; at least 0.

    Returns:
        (normed, new_residual), both [num_tokens, hidden_size], dtype of x, contiguous: new_residual = x + residual
        rounded to the dtype of x, normed = rms_norm(new_residual).

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    checks.check_add_rms_norm(x, residual, weight)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("add_rms_norm", x.device.type)(x, residual, weight, eps)
    return outputs
