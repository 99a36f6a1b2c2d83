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


def check_verify_draft(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_rows: torch.Tensor,
    accept_draws: torch.Tensor,
    draws: torch.Tensor,
    draft_probs: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `verify_draft` can take these. Values are not looked at."""
    check_floats("target_probs", target_probs, "[num_rows, vocab_size]", num_dims=2)
    rows = (target_probs.shape[0],)
    check_like("target_probs", target_probs, tuple(target_probs.shape), torch.float32, target_probs)
    check_like("draft_token_ids", draft_token_ids, rows, torch.int64, target_probs)
    num_seqs = draws.shape[0] if draws.dim() else 0
    check_like("draws", draws, (num_seqs,), torch.float32, target_probs)
    check_like("cu_rows", cu_rows, (num_seqs + 1,), torch.int32, target_probs)
    check_like("accept_draws", accept_draws, rows, torch.float32, target_probs)
    if draft_probs is not None:
        check_like("draft_probs", draft_probs, tuple(target_probs.shape), torch.float32, target_probs)
