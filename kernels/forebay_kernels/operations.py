"""The kernels as callers see them: typed, their arguments checked, run by the implementation that fits the device.

Every check is on shapes, strides, dtypes and devices alone, none reads a tensor's values, so none waits for the GPU.
They hold on every device alike: what would fail on a GPU fails on a CPU too.
"""

import torch

from forebay_kernels import checks
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


def rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn every head of query and key by the angles of its token's position (half-split, "neox" layout).

    Args:
        query: [num_tokens, num_heads, head_dim], float32, float16 or bfloat16, head_dim even; elements of a head
            adjacent, heads and tokens may lie apart (a slice of a fused projection is fine). Not written to.
        key: [num_tokens, num_kv_heads, head_dim], dtype and device of query, strides as query.
        positions: [num_tokens], int64, contiguous, each from 0 to max_position - 1. Values are not checked here: a
            larger one is an IndexError on a CPU and reads foreign memory on a GPU.
        cos_sin_cache: [max_position, head_dim], float32, contiguous: cosines in the first half of a row, sines in the
            second.

    Returns:
        (query, key) turned, new tensors, dtype of query, contiguous. The arithmetic is float32.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    checks.check_rotary(query, key, positions, cos_sin_cache)
    outputs: tuple[torch.Tensor, torch.Tensor] = implementation("rotary", query.device.type)(
        query, key, positions, cos_sin_cache
    )
    return outputs


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Multiply silu(gate) by up: the activation of a gated MLP whose two projections were computed as one.

    Args:
        gate_up: [num_tokens, 2 * intermediate_size], float32, float16 or bfloat16, gate first; elements of a row
            adjacent, rows may lie apart.

    Returns:
        [num_tokens, intermediate_size], dtype of gate_up, contiguous. silu is float32, rounded before the product.

    Raises:
        ValueError: shape, dtype or strides are not as said above.
    """
    checks.check_silu_and_mul(gate_up)
    activated: torch.Tensor = implementation("silu_and_mul", gate_up.device.type)(gate_up)
    return activated
