"""Attention over paged keys and values for a flat batch of prefill chunks and decodes, in torch operators.

The new keys and values of a step are written to their slots first. A prefill chunk then reads itself contiguously and
only its prefix through pages; decodes are batched: one gather and one padded call for requests of similar length.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from forebay_server.layers.invariant import is_invariant
from forebay_server.layers.kv_cache import Pages


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
    num_context_tokens: int
    """Tokens before the chunk that its first token, at least, sees or that lie in a block with such tokens."""
    context_blocks: torch.Tensor
    """[ceil(num_context_tokens / block_size)], int64."""
    mask: torch.Tensor | None
    """[num_tokens, num_context_tokens + num_tokens], bool, true where a query sees a key; None: causal, no context."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Requests with one new token each and similar context, rows start to start + size of the flat batch."""

    start: int
    size: int
    block_table: torch.Tensor
    """[size, blocks that the longest sees], int64; the rest of a row repeats the row's first block."""
    mask: torch.Tensor
    """[size, 1, 1, blocks that the longest sees * block_size], bool."""


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """How the rows of one flat batch attend in all layers with the same window."""

    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """How the rows of one flat batch attend."""

    slot_mapping: torch.Tensor
    """[num_tokens], int64: block * block_size + offset where each new key and value goes."""
    layouts: Mapping[int | None, AttentionLayout]
    """By sliding window; None: of layers without one."""


def build_attention_metadata(
    slices: Sequence[SequenceSlice],
    block_size: int,
    device: torch.device,
    windows: Collection[int | None] = (None,),
) -> AttentionMetadata:
    """Lay out a step.

    Args:
        slices: in the order of the flat batch: those with one new token first, by growing context.
        block_size: tokens in a block.
        device: where the tensors go.
        windows: the sliding windows of the layers; None for layers without one.
    """
    slots: list[int] = []
    for part in slices:
        for position in range(part.context_len, part.context_len + part.num_new_tokens):
            slots.append(part.block_ids[position // block_size] * block_size + position % block_size)
    return AttentionMetadata(
        slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
        layouts={window: _layout(slices, window, block_size, device) for window in windows},
    )


def _layout(
    slices: Sequence[SequenceSlice], window: int | None, block_size: int, device: torch.device
) -> AttentionLayout:
    num_decodes = sum(1 for part in slices if part.num_new_tokens == 1)
    prefills = []
    start = num_decodes
    for part in slices[num_decodes:]:
        prefills.append(_prefill_chunk(part, start, window, block_size, device))
        start += part.num_new_tokens
    decodes = _decode_groups(slices[:num_decodes], window, block_size, device)
    return AttentionLayout(tuple(decodes), tuple(prefills))


def _prefill_chunk(
    part: SequenceSlice, start: int, window: int | None, block_size: int, device: torch.device
) -> PrefillChunk:
    num_tokens = part.num_new_tokens
    first_block = _first_block(part, window, block_size)
    num_context = part.context_len - first_block * block_size
    mask = None
    if num_context or (window is not None and num_tokens > window):
        mask = torch.ones(num_tokens, num_context + num_tokens, dtype=torch.bool, device=device).tril(num_context)
        if window is not None:
            mask = mask.triu(num_context - window + 1)
    context_blocks = part.block_ids[first_block : first_block - (-num_context // block_size)]
    return PrefillChunk(
        start=start,
        num_tokens=num_tokens,
        num_context_tokens=num_context,
        context_blocks=torch.tensor(context_blocks, dtype=torch.int64, device=device),
        mask=mask,
    )


def _decode_groups(
    slices: Sequence[SequenceSlice], window: int | None, block_size: int, device: torch.device
) -> list[DecodeGroup]:
    """Split where the longest would need more than twice the blocks of the shortest: padding stays under half."""
    groups: list[DecodeGroup] = []
    sizes = [len(_visible_blocks(part, window, block_size)) for part in slices]
    first = 0
    for end in range(1, len(slices) + 1):
        if end == len(slices) or sizes[end] > 2 * sizes[first] + 2:
            groups.append(_decode_group(slices[first:end], first, window, block_size, device))
            first = end
    return groups


def _decode_group(
    slices: Sequence[SequenceSlice], start: int, window: int | None, block_size: int, device: torch.device
) -> DecodeGroup:
    visible = [_visible_blocks(part, window, block_size) for part in slices]
    width = max(map(len, visible))
    table = [[*blocks, *[blocks[0]] * (width - len(blocks))] for blocks in visible]
    # keys of a row, counted from the start of its first visible block
    positions = torch.arange(width * block_size, device=device)
    skipped = [_first_block(part, window, block_size) * block_size for part in slices]
    ends = [part.context_len + 1 - first for part, first in zip(slices, skipped, strict=True)]
    mask = positions < torch.tensor(ends, dtype=torch.int64, device=device).unsqueeze(1)  # [size, width * block_size]
    if window is not None:
        mask &= positions >= torch.tensor(ends, dtype=torch.int64, device=device).unsqueeze(1) - window
    return DecodeGroup(
        start=start,
        size=len(slices),
        block_table=torch.tensor(table, dtype=torch.int64, device=device),
        mask=mask[:, None, None, :],
    )


def _first_block(part: SequenceSlice, window: int | None, block_size: int) -> int:
    """The first block that holds something which the first new token sees."""
    return 0 if window is None else max(0, part.context_len + 1 - window) // block_size


def _visible_blocks(part: SequenceSlice, window: int | None, block_size: int) -> Sequence[int]:
    """Of a request with one new token."""
    return part.block_ids[_first_block(part, window, block_size) : part.context_len // block_size + 1]


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: tuple[Pages, Pages],
    metadata: AttentionMetadata,
    *,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Write the new keys and values to the cache, then attend.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key: [num_tokens, num_kv_heads, head_dim].
        value: as `key`.
        pages: this layer's keys and values; written in place.
        metadata: of the step, laid out for this window.
        window: how many tokens a token sees, itself included; None: all.
        scale: scores are multiplied with it; None: 1 / sqrt(head_dim).
        soft_cap: scaled scores s become soft_cap * tanh(s / soft_cap); None: they stay.

    Returns:
        [num_tokens, num_heads, head_dim].
    """
    keys, values = pages
    key, value = keys.write(metadata.slot_mapping, key), values.write(metadata.slot_mapping, value)
    output = torch.empty_like(query)
    layout = metadata.layouts[window]
    scores = _Scores(query.shape[-1] ** -0.5 if scale is None else scale, soft_cap)
    for group in layout.decodes:
        rows = slice(group.start, group.start + group.size)
        output[rows] = _decode(query[rows], keys, values, group, scores)
    for chunk in layout.prefills:
        rows = slice(chunk.start, chunk.start + chunk.num_tokens)
        output[rows] = _prefill(query[rows], key[rows], value[rows], keys, values, chunk, scores)
    return output


@dataclass(frozen=True, slots=True)
class _Scores:
    """Attention with its scale and cap."""

    scale: float
    soft_cap: float | None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """[..., num_heads, num_queries, head_dim] over [..., num_kv_heads, num_keys, head_dim]; no mask: causal."""
        if is_invariant(query):
            return self._attend(query.double(), key.double(), value.double(), mask).float()
        return self._attend(query, key, value, mask)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        if self.soft_cap is None:
            return scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=True
            )
        num_kv_heads, num_queries = key.shape[-3], query.shape[-2]
        if mask is None:
            mask = torch.ones(num_queries, num_queries, dtype=torch.bool, device=query.device).tril()
        # heads that share a key head meet it in one product: [..., num_kv_heads, heads of one, num_queries, head_dim]
        wide = torch.promote_types(query.dtype, torch.float32)
        grouped = query.reshape(*query.shape[:-3], num_kv_heads, -1, *query.shape[-2:])
        scores = (grouped @ key.unsqueeze(-3).transpose(-1, -2)).to(wide) * self.scale
        scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        mask = mask if mask.dim() == 2 else mask.unsqueeze(-3)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(value.dtype)
        return (weights @ value.unsqueeze(-3)).flatten(-4, -3)


def _decode(query: torch.Tensor, keys: Pages, values: Pages, group: DecodeGroup, scores: _Scores) -> torch.Tensor:
    """[size, num_heads, head_dim] -> the same shape. Heads that share a key head are the rows of one small product."""
    num_kv_heads, head_dim = keys.numbers.shape[2:]
    query = query.view(group.size, num_kv_heads, -1, head_dim)  # [size, num_kv_heads, heads of one kv head, head_dim]
    key, value = (pages.gather(group.block_table, query.dtype) for pages in (keys, values))
    return scores.attend(query, key, value, group.mask).reshape(group.size, -1, head_dim)


def _prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: Pages,
    values: Pages,
    chunk: PrefillChunk,
    scores: _Scores,
) -> torch.Tensor:
    """[num_tokens, num_heads, head_dim] -> the same shape."""
    if chunk.num_context_tokens:
        table = chunk.context_blocks.unsqueeze(0)
        prefix_key = keys.gather(table, key.dtype)[0, :, : chunk.num_context_tokens].transpose(0, 1)
        prefix_value = values.gather(table, value.dtype)[0, :, : chunk.num_context_tokens].transpose(0, 1)
        key, value = torch.cat((prefix_key, key)), torch.cat((prefix_value, value))
    attended = scores.attend(
        query.transpose(0, 1).unsqueeze(0),  # [1, num_heads, num_tokens, head_dim]
        key.transpose(0, 1).unsqueeze(0),  # [1, num_kv_heads, num_context_tokens + num_tokens, head_dim]
        value.transpose(0, 1).unsqueeze(0),
        chunk.mask,
    )
    return attended[0].transpose(0, 1)
