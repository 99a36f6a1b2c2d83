"""Sampling in Triton without a sort: one program a row, which passes over the row's logits several times.

A cut keeps every token whose weight exp((logit - best) / temperature) is at least some floor. Floats of one sign are
ordered as their bits are, so 30 passes find the floor of top_k or of top_p exactly, bit by bit from the highest. After
the first pass a row lies in the GPU's cache.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.launch import Launch, block_of

# Logits at a time: 4 a thread of 8 warps, as many as a 16-byte load brings. By arithmetic: not yet measured on a GPU.
_MAX_BLOCK = 4096
# Bits of 1.0, the largest weight.
_ONE = tl.constexpr(0x3F800000)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(row_ptr, start, vocab_size, best, temperature, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return exp((logit - best) / temperature) of BLOCK tokens, 0 beyond the vocabulary."""
    tokens = start + tl.arange(0, BLOCK)
    logits = tl.load(row_ptr + tokens, mask=tokens < vocab_size, other=float("-inf"))
    return tl.exp((logits - best) / temperature)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_of(  # type: ignore[no-untyped-def]
    row_ptr, vocab_size, best, temperature, floor, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """Add up the weights of at least floor, or count them."""
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK):
        weights = _weights(row_ptr, start, vocab_size, best, temperature, BLOCK)
        is_kept = weights >= floor
        if COUNT:
            sums += is_kept.to(tl.float32)
        else:
            sums += tl.where(is_kept, weights, 0.0)
    return tl.sum(sums, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _highest_floor(  # type: ignore[no-untyped-def]
    row_ptr, vocab_size, best, temperature, wanted, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the highest floor at which the kept weights add up (or count) to at least wanted."""
    bits = tl.full((), 0, dtype=tl.int32)
    for place in range(0, 30):
        candidate = bits | (1 << (29 - place))
        floor = tl.cast(candidate, tl.float32, bitcast=True)
        enough = _sum_of(row_ptr, vocab_size, best, temperature, floor, COUNT, BLOCK) >= wanted
        bits = tl.where(enough & (candidate <= _ONE), candidate, bits)
    return tl.cast(bits, tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _sample_kernel(  # type: ignore[no-untyped-def]
    token_ids_ptr,  # [num_rows], int64
    logprobs_ptr,  # [num_rows], float32
    logits_ptr,  # [num_rows, vocab_size], float32
    temperatures_ptr,  # [num_rows], float32
    top_ks_ptr,  # [num_rows], int32
    top_ps_ptr,  # [num_rows], float32
    min_ps_ptr,  # [num_rows], float32
    draws_ptr,  # [num_rows], float32
    stride_logits_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Pick one row's token."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride_logits_row
    temperature = tl.load(temperatures_ptr + row)

    bests = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    places = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, vocab_size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + tokens, mask=tokens < vocab_size, other=float("-inf"))
        places = tl.where(logits > bests, tokens, places)
        bests = tl.maximum(bests, logits)
    best = tl.max(bests, 0)
    # Of equally likely tokens the first, as argmax says.
    token_id = tl.min(tl.where(bests == best, places, vocab_size), 0)

    if temperature > 0:
        floor = tl.load(min_ps_ptr + row)
        top_k = tl.load(top_ks_ptr + row)
        top_p = tl.load(top_ps_ptr + row)
        if (top_k > 0) & (top_k < vocab_size):
            wanted = top_k.to(tl.float32)
            top_k_floor = _highest_floor(row_ptr, vocab_size, best, temperature, wanted, True, BLOCK)
        else:
            top_k_floor = 0.0
        if top_p < 1:
            wanted = top_p * _sum_of(row_ptr, vocab_size, best, temperature, top_k_floor, False, BLOCK)
            top_p_floor = _highest_floor(row_ptr, vocab_size, best, temperature, wanted, False, BLOCK)
        else:
            top_p_floor = 0.0
        floor = tl.maximum(floor, tl.maximum(top_k_floor, top_p_floor))
        target = tl.load(draws_ptr + row) * _sum_of(row_ptr, vocab_size, best, temperature, floor, False, BLOCK)
        before = 0.0
        drawn = vocab_size
        last = 0
        for start in range(0, vocab_size, BLOCK):
            tokens = start + tl.arange(0, BLOCK)
            weights = _weights(row_ptr, start, vocab_size, best, temperature, BLOCK)
            kept = tl.where(weights >= floor, weights, 0.0)
            is_beyond = (before + tl.cumsum(kept, 0) > target) & (kept > 0)
            drawn = tl.minimum(drawn, tl.min(tl.where(is_beyond, tokens, vocab_size), 0))
            last = tl.maximum(last, tl.max(tl.where(kept > 0, tokens, 0), 0))
            before += tl.sum(kept, 0)
        # Sums in another order may end just below the target: then it is the last one kept.
        token_id = tl.minimum(drawn, last)

    total = _sum_of(row_ptr, vocab_size, best, 1.0, 0.0, False, BLOCK)
    tl.store(token_ids_ptr + row, token_id.to(tl.int64))
    tl.store(logprobs_ptr + row, tl.load(row_ptr + token_id) - best - tl.log(total))


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    draws: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.sample`."""
    token_ids = torch.empty(logits.shape[:1], dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(logits.shape[:1], dtype=torch.float32, device=logits.device)
    sample_launch(token_ids, logprobs, logits, temperatures, top_ks, top_ps, min_ps, draws).run()
    return token_ids, logprobs


def sample_launch(
    token_ids: torch.Tensor,
    logprobs: torch.Tensor,
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    draws: torch.Tensor,
) -> Launch:
    """Return the launch of `sample` that writes to token_ids and logprobs. Pure."""
    num_rows, vocab_size = logits.shape
    return Launch(
        kernel=_sample_kernel,
        grid=(num_rows,),
        arguments={
            "token_ids_ptr": token_ids,
            "logprobs_ptr": logprobs,
            "logits_ptr": logits,
            "temperatures_ptr": temperatures,
            "top_ks_ptr": top_ks,
            "top_ps_ptr": top_ps,
            "min_ps_ptr": min_ps,
            "draws_ptr": draws,
            "stride_logits_row": logits.stride(0),
            "vocab_size": vocab_size,
            "BLOCK": min(block_of(vocab_size), _MAX_BLOCK),
        },
        num_warps=8,
    )
