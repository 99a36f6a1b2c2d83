"""Checks of the arguments of quantization."""

import torch

from forebay_kernels.checks.norms import MAX_HIDDEN_SIZE
from forebay_kernels.checks.tensors import check_floats
from forebay_kernels.reference.quantization import LARGEST


def check_quantize_per_token(x: torch.Tensor, dtype: torch.dtype, group_size: int | None) -> None:
    """Raise ValueError unless `quantize_per_token` can take these."""
    check_floats("x", x, "[num_tokens, hidden_size]", num_dims=2)
    check_eight_bits(dtype)
    hidden_size = x.shape[1]
    if not 1 <= hidden_size <= MAX_HIDDEN_SIZE:
        raise ValueError(f"x: hidden_size must be 1 to {MAX_HIDDEN_SIZE}, got shape {list(x.shape)}")
    if group_size is not None and (group_size < 1 or hidden_size % group_size):
        raise ValueError(f"group_size: must divide hidden_size, {hidden_size}, got {group_size}")


def check_eight_bits(dtype: torch.dtype) -> None:
    """Raise ValueError unless dtype is one that quantization yields."""
    if dtype not in LARGEST:
        raise ValueError(f"dtype: expected torch.int8 or torch.float8_e4m3fn, got {dtype}")
