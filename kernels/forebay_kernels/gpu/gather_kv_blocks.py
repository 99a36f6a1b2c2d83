"""Copies of whole cache blocks in Triton. Bound by memory: each is read once and written once."""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import as_bytes
from forebay_kernels.gpu.launch import Launch, warps_of

# Elements that one program copies: a block of 16 tokens of 8 heads of 128 is 16 programs. By arithmetic: not yet
# measured on a GPU.
_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kv_blocks_kernel(  # type: ignore[no-untyped-def]
    cache_ptr,  # [num_blocks, elements_of_block], contiguous
    source_blocks_ptr,  # [num_copies], int32
    target_blocks_ptr,  # [num_copies], int32
    elements_of_block,
    BLOCK: tl.constexpr,
):
    """Copy BLOCK elements of one block."""
    source = tl.load(source_blocks_ptr + tl.program_id(0)).to(tl.int64)
    target = tl.load(target_blocks_ptr + tl.program_id(0)).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < elements_of_block
    tl.store(
        cache_ptr + target * elements_of_block + offs,
        tl.load(cache_ptr + source * elements_of_block + offs, mask=mask),
        mask=mask,
    )


def gather_kv_blocks(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    source_blocks: torch.Tensor,
    target_blocks: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """Launch the kernel once for each tensor; arguments and effect as `forebay_kernels.gather_kv_blocks`."""
    for tensor in (key_cache, value_cache, key_scales, value_scales):
        if tensor is not None:
            gather_kv_blocks_launch(tensor, source_blocks, target_blocks).run()


def gather_kv_blocks_launch(cache: torch.Tensor, source_blocks: torch.Tensor, target_blocks: torch.Tensor) -> Launch:
    """Return the launch that copies blocks of one contiguous tensor, whose first dimension they number. Pure."""
    elements_of_block = cache[0].numel() if len(cache) else 0
    return Launch(
        kernel=_gather_kv_blocks_kernel,
        grid=(source_blocks.shape[0], triton.cdiv(elements_of_block, _BLOCK)),
        arguments={
            "cache_ptr": as_bytes(cache),
            "source_blocks_ptr": source_blocks,
            "target_blocks_ptr": target_blocks,
            "elements_of_block": elements_of_block,
            "BLOCK": _BLOCK,
        },
        num_warps=warps_of(_BLOCK, elements_per_thread=8),
    )
