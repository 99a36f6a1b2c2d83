"""Attention over paged keys and values, as callers see it. The cache is as `operations.kv_cache` describes it."""

import torch

from forebay_kernels.checks import attention as checks
from forebay_kernels.dispatch import implementation


def prefill_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor,
    max_seqlen_q: int,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Let the new tokens of several sequences attend to themselves and, through pages, to what was computed before.

    Args:
        query: [num_tokens, num_heads, head_dim], float32, float16 or bfloat16, turned; sequence after sequence;
            elements of a head adjacent, heads and tokens may lie apart. head_dim at most 256.
        key: [num_tokens, num_kv_heads, head_dim], dtype and device of query, turned, as `write_kv_cache` returns it;
            num_heads is a multiple of num_kv_heads.
        value: as key.
        key_cache: one layer's keys; only the context's slots are read.
        value_cache: one layer's values.
        block_table: [num_seqs, max_blocks], int32: blocks of each sequence in order, at least ceil(context_len /
            block_size) of them valid; rows may lie apart.
        cu_seqlens_q: [num_seqs + 1], int32, contiguous: where each sequence's new tokens start, and num_tokens.
        context_lens: [num_seqs], int32, contiguous: tokens of each sequence that are in the cache before the new ones.
        max_seqlen_q: most new tokens of one sequence, or more.
        scale: of the scores, head_dim ** -0.5 for most models.
        sliding_window: a token sees itself and the sliding_window - 1 before it; 0: all before it.
        soft_cap: scores become soft_cap * tanh(score / soft_cap), as in Gemma 2; 0: they stay.
        key_scales: of a quantized cache, else None.
        value_scales: of a quantized cache, else None.

    Returns:
        [num_tokens, num_heads, head_dim], dtype of query, contiguous. Scores and sums are float32; a GPU rounds the
        weights to the dtype of query before it multiplies them with the values.

    Raises:
        ValueError: shape, dtype, device, strides or a number are not as said above.
    """
    arguments = (
        query, key, value, key_cache, value_cache, block_table, cu_seqlens_q, context_lens, max_seqlen_q, scale,
        sliding_window, soft_cap, key_scales, value_scales,
    )  # fmt: skip
    checks.check_prefill_attention(*arguments)
    output: torch.Tensor = implementation("prefill_attention", query.device.type)(*arguments)
    return output


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
    attention_mass: torch.Tensor | None = None,
) -> torch.Tensor:
    """Let one new token of each of several sequences attend to all of its sequence, which is in the cache.

    How a sequence is divided among programs depends on its length alone, so a sequence's bits do not depend on its
    batch, nor on max_seq_len.

    Args:
        query: [num_seqs, num_heads, head_dim], as for `prefill_attention`.
        key_cache: one layer's keys, the new token's included.
        value_cache: one layer's values, the new token's included.
        block_table: [num_seqs, max_blocks], int32: blocks of each sequence in order; rows may lie apart.
        seq_lens: [num_seqs], int32, contiguous: tokens in the cache, the new one included; 0: a row of zeros comes out
            (padding of a CUDA graph).
        max_seq_len: longest of seq_lens, or more: decides how many programs start, not what they compute.
        scale: as for `prefill_attention`.
        sliding_window: as for `prefill_attention`.
        soft_cap: as for `prefill_attention`.
        key_scales: of a quantized cache, else None.
        value_scales: of a quantized cache, else None.
        attention_mass: [num_seqs, max_blocks], float32, contiguous, written whole: how much of its attention the new
            token gives to each block of its sequence, added up over the heads, so that a row sums to num_heads; what
            eviction by importance goes by. 0 for blocks beyond the sequence. None: not wanted, and costs nothing. Not
            with a sliding window, whose blocks are freed by age; block_size must be a power of two.

    Returns:
        [num_seqs, num_heads, head_dim], dtype of query, contiguous.

    Raises:
        ValueError: shape, dtype, device, strides or a number are not as said above.
    """
    arguments = (
        query, key_cache, value_cache, block_table, seq_lens, max_seq_len, scale, sliding_window, soft_cap, key_scales,
        value_scales, attention_mass,
    )  # fmt: skip
    checks.check_decode_attention(*arguments)
    output: torch.Tensor = implementation("decode_attention", query.device.type)(*arguments)
    return output
