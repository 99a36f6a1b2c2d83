"""Rejection sampling of drafted tokens in Triton: one program a sequence. Leviathan et al. 2023, arXiv:2211.17192.

Bound by memory: one number a draft, and twice the row from which the last token is drawn.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.launch import Launch, block_of

# As for sample: 4 probabilities a thread of 8 warps. By arithmetic: not yet measured on a GPU.
_MAX_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def _remaining(  # type: ignore[no-untyped-def]
    target_ptr, draft_ptr, draft_token, tokens, vocab_size, is_rejected, HAS_DRAFT_PROBS: tl.constexpr
):
    """Return what the last token is drawn from: p after the last draft, max(p - q, 0) where one was rejected."""
    p = tl.load(target_ptr + tokens, mask=tokens < vocab_size, other=0.0)
    if HAS_DRAFT_PROBS:
        q = tl.load(draft_ptr + tokens, mask=tokens < tl.where(is_rejected, vocab_size, 0), other=0.0)
    else:
        q = tl.where(is_rejected & (tokens == draft_token), 1.0, 0.0)
    return tl.maximum(p - q, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _verify_draft_kernel(  # type: ignore[no-untyped-def]
    token_ids_ptr,  # [num_rows], int64
    num_accepted_ptr,  # [num_seqs], int32
    target_probs_ptr,  # [num_rows, vocab_size], float32, contiguous
    draft_probs_ptr,  # [num_rows, vocab_size], float32, contiguous; unused unless HAS_DRAFT_PROBS
    draft_token_ids_ptr,  # [num_rows], int64
    cu_rows_ptr,  # [num_seqs + 1], int32
    accept_draws_ptr,  # [num_rows], float32
    draws_ptr,  # [num_seqs], float32
    vocab_size,
    HAS_DRAFT_PROBS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Verify one sequence's drafts."""
    seq = tl.program_id(0)
    first = tl.load(cu_rows_ptr + seq)
    last = tl.load(cu_rows_ptr + seq + 1) - 1
    # The row at which it ends: the first whose draft is rejected, or the last.
    stop = last
    for row in range(first, last):
        draft = tl.load(draft_token_ids_ptr + row)
        place = tl.cast(row, tl.int64) * vocab_size + draft
        p = tl.load(target_probs_ptr + place)
        q = tl.load(draft_probs_ptr + place) if HAS_DRAFT_PROBS else 1.0
        is_accepted = tl.load(accept_draws_ptr + row) * q < p
        stop = tl.where((row < stop) & (is_accepted == 0), row, stop)
        tl.store(token_ids_ptr + row, tl.where(row < stop, draft, -1))

    row_start = stop.to(tl.int64) * vocab_size
    is_rejected = stop < last
    draft = tl.load(draft_token_ids_ptr + stop)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        sums += _remaining(
            target_probs_ptr + row_start, draft_probs_ptr + row_start, draft, tokens, vocab_size, is_rejected,
            HAS_DRAFT_PROBS,
        )  # fmt: skip
    wanted = tl.load(draws_ptr + seq) * tl.sum(sums, 0)
    before = 0.0
    drawn = vocab_size
    last_kept = 0
    for start in range(0, vocab_size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        kept = _remaining(
            target_probs_ptr + row_start, draft_probs_ptr + row_start, draft, tokens, vocab_size, is_rejected,
            HAS_DRAFT_PROBS,
        )  # fmt: skip
        is_beyond = (before + tl.cumsum(kept, 0) > wanted) & (kept > 0)
        drawn = tl.minimum(drawn, tl.min(tl.where(is_beyond, tokens, vocab_size), 0))
        last_kept = tl.maximum(last_kept, tl.max(tl.where(kept > 0, tokens, 0), 0))
        before += tl.sum(kept, 0)
    # Rows after the stop hold -1 already, but the last, which no draft answers to.
    tl.store(token_ids_ptr + last, -1)
    tl.debug_barrier()
    # Sums in another order may end just below what is wanted: then it is the last one kept.
    tl.store(token_ids_ptr + stop, tl.minimum(drawn, last_kept).to(tl.int64))
    tl.store(num_accepted_ptr + seq, stop - first)


def verify_draft(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_rows: torch.Tensor,
    accept_draws: torch.Tensor,
    draws: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.verify_draft`."""
    token_ids = torch.empty(draft_token_ids.shape, dtype=torch.int64, device=draws.device)
    num_accepted = torch.empty(draws.shape, dtype=torch.int32, device=draws.device)
    verify_draft_launch(
        token_ids, num_accepted, target_probs, draft_token_ids, cu_rows, accept_draws, draws, draft_probs
    ).run()
    return token_ids, num_accepted


def verify_draft_launch(
    token_ids: torch.Tensor,
    num_accepted: torch.Tensor,
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_rows: torch.Tensor,
    accept_draws: torch.Tensor,
    draws: torch.Tensor,
    draft_probs: torch.Tensor | None,
) -> Launch:
    """Return the launch of `verify_draft` that writes to token_ids and num_accepted. Pure."""
    vocab_size = target_probs.shape[1]
    return Launch(
        kernel=_verify_draft_kernel,
        grid=(draws.shape[0],),
        arguments={
            "token_ids_ptr": token_ids,
            "num_accepted_ptr": num_accepted,
            "target_probs_ptr": target_probs,
            "draft_probs_ptr": target_probs if draft_probs is None else draft_probs,
            "draft_token_ids_ptr": draft_token_ids,
            "cu_rows_ptr": cu_rows,
            "accept_draws_ptr": accept_draws,
            "draws_ptr": draws,
            "vocab_size": vocab_size,
            "HAS_DRAFT_PROBS": draft_probs is not None,
            "BLOCK": min(block_of(vocab_size), _MAX_BLOCK),
        },
        num_warps=8,
    )
