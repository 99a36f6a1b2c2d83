"""Activations of gated MLPs, as callers see it."""

import torch

from forebay_kernels.checks import activations as checks
from forebay_kernels.dispatch import implementation


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


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Multiply gelu(gate), in its tanh approximation, by up: Gemma's gated MLP.

    Args:
        gate_up: as for `silu_and_mul`.

    Returns:
        As `silu_and_mul`.

    Raises:
        ValueError: shape, dtype or strides are not as said above.
    """
    checks.check_gelu_and_mul(gate_up)
    activated: torch.Tensor = implementation("gelu_and_mul", gate_up.device.type)(gate_up)
    return activated
