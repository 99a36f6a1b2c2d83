"""The mask of a grammar applied to logits in Triton.

Bound by memory, of which little is touched: only -infinity is written, and no logit is read.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.launch import Launch, warps_of

# Tokens of one program: 64 words of the mask. By arithmetic: not yet measured on a GPU.
_BLOCK = 2048


@triton.jit  # type: ignore[untyped-decorator]
def _apply_bitmask_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,  # [num_rows, vocab_size]
    bitmask_ptr,  # [num_rows, num_words], int32, contiguous
    stride_logits_row,
    vocab_size,
    num_words,
    BLOCK: tl.constexpr,
):
    """Forbid BLOCK tokens of one row."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < vocab_size
    words = tl.load(bitmask_ptr + row * num_words + tokens // 32, mask=is_token, other=-1)
    is_forbidden = ((words >> (tokens % 32)) & 1) == 0
    tl.store(logits_ptr + row * stride_logits_row + tokens, float("-inf"), mask=is_token & is_forbidden)


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Launch the kernel; arguments and effect as `forebay_kernels.apply_bitmask`."""
    apply_bitmask_launch(logits, bitmask).run()


def apply_bitmask_launch(logits: torch.Tensor, bitmask: torch.Tensor) -> Launch:
    """Return the launch of `apply_bitmask`. Pure."""
    num_rows, vocab_size = logits.shape
    return Launch(
        kernel=_apply_bitmask_kernel,
        grid=(num_rows, triton.cdiv(vocab_size, _BLOCK)),
        arguments={
            "logits_ptr": logits,
            "bitmask_ptr": bitmask,
            "stride_logits_row": logits.stride(0),
            "vocab_size": vocab_size,
            "num_words": bitmask.shape[1],
            "BLOCK": _BLOCK,
        },
        num_warps=warps_of(_BLOCK, elements_per_thread=8),
    )
