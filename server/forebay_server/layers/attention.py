"""Attention over paged keys and values for a flat batch of prefill chunks and decodes, in torch operators.

The new keys and values of a step are written to their slots first. A prefill chunk then reads itself contiguously and
only its prefix through pages; decodes are batched: one gather and one padded call for requests of similar length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """The tokens that one request computes in a step."""

    num_new_tokens: int
    context_len: int
    """Tokens before them, whose keys and values are in the cache."""
    block_ids: Sequence[int]
    """The request's blocks, enough for context and new tokens."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One request with several new tokens."""

    start: int
    """Its first row in the flat batch."""
    num_tokens: int
    context_len: int
    context_blocks: torch.Tensor
    """[ceil(context_len / block_size)], int64."""
    mask: torch.Tensor | None
    """[num_tokens, context_len + num_tokens], bool, true where a query sees a key; None: causal, without context."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Requests with one new token each and similar context, rows start to start + size of the flat batch."""

    start: int
    size: int
    block_table: torch.Tensor
    """[size, blocks of the longest], int64; the rest of a row repeats the row's first block."""
    mask: torch.Tensor
    """[size, 1, 1, blocks of the longest * block_size], bool."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """How the rows of one flat batch attend; the same for every layer."""

    slot_mapping: torch.Tensor
    """[num_tokens], int64: block * block_size + offset where each new key and value goes."""
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]


def build_attention_metadata(
    slices: Sequence[SequenceSlice], block_size: int, device: torch.device
) -> AttentionMetadata:
    """Lay out a step.

    Args:
        slices: in the order of the flat batch: those with one new token first, by growing context.
        block_size: tokens in a block.
        device: where the tensors go.
    """
    num_decodes = sum(1 for part in slices if part.num_new_tokens == 1)
    slots: list[int] = []
    for part in slices:
        for position in range(part.context_len, part.context_len + part.num_new_tokens):
            slots.append(part.block_ids[position // block_size] * block_size + position % block_size)
    prefills = []
    start = num_decodes
    for part in slices[num_decodes:]:
        prefills.append(_prefill_chunk(part, start, block_size, device))
        start += part.num_new_tokens
    return AttentionMetadata(
        slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
        decodes=tuple(_decode_groups(slices[:num_decodes], block_size, device)),
        prefills=tuple(prefills),
    )


def _prefill_chunk(part: SequenceSlice, start: int, block_size: int, device: torch.device) -> PrefillChunk:
    num_blocks = -(-part.context_len // block_size)
    mask = None
    if part.context_len:
        ones = torch.ones(part.num_new_tokens, part.context_len + part.num_new_tokens, dtype=torch.bool, device=device)
        mask = ones.tril(part.context_len)
    return PrefillChunk(
        start=start,
        num_tokens=part.num_new_tokens,
        context_len=part.context_len,
        context_blocks=torch.tensor(part.block_ids[:num_blocks], dtype=torch.int64, device=device),
        mask=mask,
    )


def _decode_groups(slices: Sequence[SequenceSlice], block_size: int, device: torch.device) -> list[DecodeGroup]:
    """Split where the longest would need more than twice the blocks of the shortest: padding stays under half."""
    groups: list[DecodeGroup] = []
    first = 0
    for end in range(1, len(slices) + 1):
        if end == len(slices) or _num_blocks(slices[end], block_size) > 2 * _num_blocks(slices[first], block_size) + 2:
            groups.append(_decode_group(slices[first:end], first, block_size, device))
            first = end
    return groups


def _decode_group(slices: Sequence[SequenceSlice], start: int, block_size: int, device: torch.device) -> DecodeGroup:
    width = max(_num_blocks(part, block_size) for part in slices)
    table = []
    for part in slices:
        used = list(part.block_ids[: _num_blocks(part, block_size)])
        table.append(used + [used[0]] * (width - len(used)))
    lengths = torch.tensor([part.context_len + 1 for part in slices], dtype=torch.int64, device=device)
    mask = torch.arange(width * block_size, device=device) < lengths.unsqueeze(1)  # [size, width * block_size]
    return DecodeGroup(
        start=start,
        size=len(slices),
        block_table=torch.tensor(table, dtype=torch.int64, device=device),
        mask=mask[:, None, None, :],
    )


def _num_blocks(part: SequenceSlice, block_size: int) -> int:
    return part.context_len // block_size + 1


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    metadata: AttentionMetadata,
) -> torch.Tensor:
    """Write the new keys and values to the cache, then attend.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key: [num_tokens, num_kv_heads, head_dim].
        value: as `key`.
        kv_cache: [2, num_blocks, block_size, num_kv_heads, head_dim], this layer's; written in place. Never-written
            slots must be finite: they are read and multiplied by 0.
        metadata: of the step.

    Returns:
        [num_tokens, num_heads, head_dim].
    """
    keys, values = kv_cache[0], kv_cache[1]  # [num_blocks, block_size, num_kv_heads, head_dim]
    keys.flatten(0, 1).index_copy_(0, metadata.slot_mapping, key.to(keys.dtype))
    values.flatten(0, 1).index_copy_(0, metadata.slot_mapping, value.to(values.dtype))
    output = torch.empty_like(query)
    for group in metadata.decodes:
        rows = slice(group.start, group.start + group.size)
        output[rows] = _decode(query[rows], keys, values, group)
    for chunk in metadata.prefills:
        rows = slice(chunk.start, chunk.start + chunk.num_tokens)
        output[rows] = _prefill(query[rows], key[rows], value[rows], keys, values, chunk)
    return output


def _decode(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
    """[size, num_heads, head_dim] -> the same shape. Heads that share a key head are the rows of one small product."""
    num_kv_heads, head_dim = keys.shape[2:]
    query = query.view(group.size, num_kv_heads, -1, head_dim)  # [size, num_kv_heads, heads of one kv head, head_dim]
    key, value = _gather(keys, group.block_table, query.dtype), _gather(values, group.block_table, query.dtype)
    attended = scaled_dot_product_attention(query, key, value, attn_mask=group.mask)
    return attended.reshape(group.size, -1, head_dim)


def _prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    chunk: PrefillChunk,
) -> torch.Tensor:
    """[num_tokens, num_heads, head_dim] -> the same shape."""
    if chunk.context_len:
        table = chunk.context_blocks.unsqueeze(0)
        prefix_key = _gather(keys, table, key.dtype)[0, :, : chunk.context_len].transpose(0, 1)
        prefix_value = _gather(values, table, value.dtype)[0, :, : chunk.context_len].transpose(0, 1)
        key, value = torch.cat((prefix_key, key)), torch.cat((prefix_value, value))
    attended = scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),  # [1, num_heads, num_tokens, head_dim]
        key.transpose(0, 1).unsqueeze(0),  # [1, num_kv_heads, context_len + num_tokens, head_dim]
        value.transpose(0, 1).unsqueeze(0),
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def _gather(pages: torch.Tensor, block_table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Copy the blocks of a [size, width] table out of the pages: [size, num_kv_heads, width * block_size, head_dim]."""
    size = block_table.shape[0]
    # whole blocks are copied as rows: 2-3 times faster than advanced indexing (0.44 against 1.56 ms, 50 x 256 tokens)
    rows = pages.flatten(1).index_select(0, block_table.flatten())
    return rows.view(size, -1, *pages.shape[2:]).transpose(1, 2).to(dtype)
