"""Checks of the arguments of activations of gated MLPs."""

import torch

from forebay_kernels.checks.tensors import check_floats


def check_silu_and_mul(gate_up: torch.Tensor) -> None:
    """Raise ValueError unless `silu_and_mul` can take this."""
    check_floats("gate_up", gate_up, "[num_tokens, 2 * intermediate_size]", num_dims=2)
    if gate_up.shape[1] == 0 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: the last dimension must be even and at least 2, got shape {list(gate_up.shape)}")


def check_gelu_and_mul(gate_up: torch.Tensor) -> None:
    """Raise ValueError unless `gelu_and_mul` can take this."""
    check_silu_and_mul(gate_up)
