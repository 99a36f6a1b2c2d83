"""Checks of the arguments of sampling."""

import torch

from forebay_kernels.checks.tensors import check_dtype, check_floats, check_like


def check_apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Raise ValueError unless `apply_bitmask` can take these."""
    check_floats("logits", logits, "[num_rows, vocab_size]", num_dims=2)
    check_like("bitmask", bitmask, (logits.shape[0], -(-logits.shape[1] // 32)), torch.int32, logits)


def check_sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    draws: torch.Tensor,
) -> None:
    """Raise ValueError unless `sample` can take these. The parameters' ranges are not looked at."""
    check_floats("logits", logits, "[num_rows, vocab_size]", num_dims=2)
    check_dtype("logits", logits, torch.float32)
    if logits.shape[1] == 0:
        raise ValueError(f"logits: vocab_size must be at least 1, got shape {list(logits.shape)}")
    rows = (logits.shape[0],)
    for name, tensor in (("temperatures", temperatures), ("top_ps", top_ps), ("min_ps", min_ps), ("draws", draws)):
        check_like(name, tensor, rows, torch.float32, logits)
    check_like("top_ks", top_ks, rows, torch.int32, logits)
