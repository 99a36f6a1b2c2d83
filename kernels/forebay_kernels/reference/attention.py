"""Attention over paged keys and values, defined in plain PyTorch: a loop over sequences, everything in float32."""

import torch


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
    """Sequence by sequence: softmax(mask(cap(scale · query · keysᵀ))) · values, keys = cached prefix, then chunk."""
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    bounds = cu_seqlens_q.tolist()
    for seq, context_len in enumerate(context_lens.tolist()):
        rows = slice(bounds[seq], bounds[seq + 1])
        keys, values = _cached(key_cache, value_cache, block_table[seq], context_len, key_scales, value_scales)
        keys, values = torch.cat((keys, key[rows].float())), torch.cat((values, value[rows].float()))
        output[rows] = attend(query[rows], keys, values, scale, sliding_window, soft_cap)
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
    """Sequence by sequence: the last token attends to all that is in the cache; zeros for a sequence of no tokens."""
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    if attention_mass is not None:
        attention_mass.zero_()
    for seq, seq_len in enumerate(seq_lens.tolist()):
        if seq_len:
            keys, values = _cached(key_cache, value_cache, block_table[seq], seq_len, key_scales, value_scales)
            last = query[seq : seq + 1]
            output[seq] = attend(last, keys, values, scale, sliding_window, soft_cap)[0]
            if attention_mass is not None:
                of_tokens = _attention_weights(last, keys, scale, sliding_window, soft_cap).sum((0, 1, 2))  # [seq_len]
                blocks = torch.arange(seq_len, device=query.device) // key_cache.shape[1]
                attention_mass[seq].index_add_(0, blocks, of_tokens)
    return output


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    sliding_window: int,
    soft_cap: float,
) -> torch.Tensor:
    """Causal attention of the last tokens of one sequence: [num_queries, num_heads, head_dim], dtype of query.

    Args:
        query: [num_queries, num_heads, head_dim], of the last num_queries tokens.
        keys: [num_keys, num_kv_heads, head_dim], float32.
        values: as keys.
        scale: of the scores.
        sliding_window: a token sees itself and the sliding_window - 1 before it; 0: all before it.
        soft_cap: scores become soft_cap · tanh(score / soft_cap); 0: they stay.
    """
    weights = _attention_weights(query, keys, scale, sliding_window, soft_cap)
    return torch.einsum("hgqk,khd->qhgd", weights, values).flatten(1, 2).to(query.dtype)


def _attention_weights(
    query: torch.Tensor, keys: torch.Tensor, scale: float, sliding_window: int, soft_cap: float
) -> torch.Tensor:
    """What each query gives to each key: [num_kv_heads, heads of each, num_queries, num_keys], float32."""
    num_queries, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = keys.shape
    grouped = query.float().reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("qhgd,khd->hgqk", grouped, keys) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    # How far each key lies before each query: negative ones are in its future.
    last = torch.arange(num_keys - num_queries, num_keys, device=query.device).unsqueeze(1)
    distance = last - torch.arange(num_keys, device=query.device)  # [num_queries, num_keys]
    is_hidden = distance < 0
    if sliding_window:
        is_hidden |= distance >= sliding_window
    return scores.masked_fill(is_hidden, -torch.inf).softmax(-1)


def _cached(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    num_tokens: int,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first num_tokens of one sequence's keys and values, [num_tokens, num_kv_heads, head_dim], float32."""
    num_blocks = -(-num_tokens // key_cache.shape[1])
    used = blocks[:num_blocks].long()
    read = []
    for cache, scales in ((key_cache, key_scales), (value_cache, value_scales)):
        rows = cache[used].flatten(0, 1)[:num_tokens].float()
        read.append(rows if scales is None else rows * scales[used].flatten(0, 1)[:num_tokens].unsqueeze(-1))
    return read[0], read[1]
