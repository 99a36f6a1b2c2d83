"""Checks of the arguments of RMS normalisation."""

import torch

from forebay_kernels.checks.tensors import check_contiguous, check_floats, check_rows, check_same_kind

MAX_HIDDEN_SIZE = 32768
"""Longest row that rms_norm takes: the GPU kernel keeps a whole row in one program's registers."""


def check_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ValueError unless `rms_norm` can take these."""
    check_floats("x", x, "[num_tokens, hidden_size]", num_dims=2)
    hidden_size = x.shape[1]
    if not 1 <= hidden_size <= MAX_HIDDEN_SIZE:
        raise ValueError(f"x: hidden_size must be 1 to {MAX_HIDDEN_SIZE}, got shape {list(x.shape)}")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight: expected shape [{hidden_size}] for x of {list(x.shape)}, got {list(weight.shape)}")
    check_same_kind("weight", weight, "x", x)
    check_contiguous("weight", weight)


def check_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ValueError unless `add_rms_norm` can take these."""
    check_rms_norm(x, weight)
    if residual.shape != x.shape:
        raise ValueError(f"residual: expected the shape of x, {list(x.shape)}, got {list(residual.shape)}")
    check_same_kind("residual", residual, "x", x)
    check_rows("residual", residual)
