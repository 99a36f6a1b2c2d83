"""Attention mass in Triton: how much of a token's attention each block of its sequence gets, over all heads.

Decode attention stores the sum of each run of weights in a block against the maximum that it knew at the time; only
when all splits are done is the sum known by which they are divided. Bound by memory: 4 bytes a run and head.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.decode_splits import MAX_SPLITS, split_tokens
from forebay_kernels.gpu.launch import Launch

# Blocks of a sequence whose mass one program adds up. By arithmetic: not yet measured on a GPU.
_BLOCK = 128


@triton.jit  # type: ignore[untyped-decorator]
def _mass_kernel(  # type: ignore[no-untyped-def]
    attention_mass_ptr,  # [num_seqs, num_blocks], float32, contiguous
    run_log_sums_ptr,  # [num_seqs, num_heads, num_blocks * RUNS_OF_BLOCK], float32, contiguous
    log_sum_ptr,  # [num_seqs, num_heads, num_splits], float32, contiguous
    seq_lens_ptr,  # [num_seqs], int32
    num_heads,
    num_splits,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    RUNS_OF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the mass of BLOCK blocks of one sequence over the heads, the first head first."""
    seq = tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq)
    offs_split = tl.arange(0, MAX_SPLITS)
    is_split = offs_split < tl.cdiv(seq_len, split_tokens(seq_len))
    blocks = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    runs = blocks[:, None] * RUNS_OF_BLOCK + tl.arange(0, RUNS_OF_BLOCK)[None, :]  # [BLOCK, RUNS_OF_BLOCK]
    is_run = runs * (BLOCK_SIZE // RUNS_OF_BLOCK) < seq_len
    mass = tl.zeros((BLOCK,), dtype=tl.float32)
    for head in range(0, num_heads):
        seq_head = seq * num_heads + head
        log_sums = tl.load(log_sum_ptr + seq_head * num_splits + offs_split, mask=is_split, other=-1.0e30)
        largest = tl.max(log_sums, 0)
        log_total = largest + tl.log2(tl.sum(tl.exp2(log_sums - largest), 0))
        run_log_sums = tl.load(
            run_log_sums_ptr + seq_head * num_blocks * RUNS_OF_BLOCK + runs, mask=is_run, other=-1.0e30
        )
        # A sequence of no tokens has no runs, and its total is that of nothing.
        mass += tl.sum(tl.where(is_run, tl.exp2(run_log_sums - log_total), 0.0), 1)
    tl.store(attention_mass_ptr + seq * num_blocks + blocks, mass, mask=blocks < num_blocks)


def mass_launch(
    attention_mass: torch.Tensor,
    run_log_sums: torch.Tensor,
    log_sum: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
) -> Launch:
    """Return the launch that writes to attention_mass, [num_seqs, max_blocks], contiguous. Pure."""
    num_seqs, num_blocks = attention_mass.shape
    num_heads, num_splits = log_sum.shape[1:]
    return Launch(
        kernel=_mass_kernel,
        grid=(triton.cdiv(num_blocks, _BLOCK), num_seqs),
        arguments={
            "attention_mass_ptr": attention_mass,
            "run_log_sums_ptr": run_log_sums,
            "log_sum_ptr": log_sum,
            "seq_lens_ptr": seq_lens,
            "num_heads": num_heads,
            "num_splits": num_splits,
            "num_blocks": num_blocks,
            "BLOCK_SIZE": block_size,
            "RUNS_OF_BLOCK": run_log_sums.shape[2] // max(num_blocks, 1),
            "BLOCK": _BLOCK,
        },
        num_warps=4,
    )
