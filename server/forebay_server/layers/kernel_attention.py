"""Attention where kernels compute: a step's keys and values go to their pages, then decodes and prompts attend.

The same semantics as `layers.attention`, whose tensors suit torch operators; the ones here suit the kernels and the
padding of CUDA graphs: a row with slot -1 writes nothing, a sequence of length 0 attends to nothing.
"""

from dataclasses import dataclass

import torch

from forebay_kernels import decode_attention, prefill_attention, write_kv_cache
from forebay_server.layers.attention import AttentionMetadata
from forebay_server.layers.kv_cache import Pages


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The first rows of the flat batch: one new token of each of several requests."""

    block_table: torch.Tensor
    """[num_seqs, max_blocks], int32."""
    seq_lens: torch.Tensor
    """[num_seqs], int32, the new token included; 0: a row that pads a graph."""
    max_seq_len: int
    """Longest, or more; at most max_blocks * block_size."""


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """The rows after them: several new tokens of each of several requests."""

    block_table: torch.Tensor
    """[num_seqs, max_blocks], int32."""
    cu_seqlens: torch.Tensor
    """[num_seqs + 1], int32: where each request's rows start, counted from the first of these rows."""
    context_lens: torch.Tensor
    """[num_seqs], int32: tokens in the cache before the new ones."""
    max_num_new: int
    """New tokens of one request, at most."""


@dataclass(frozen=True, slots=True)
class KernelMetadata:
    """How the rows of one flat batch attend."""

    slot_mapping: torch.Tensor
    """[num_tokens], int64: block * block_size + offset where each new key and value goes; -1: nowhere."""
    decodes: DecodeRows | None
    prefills: PrefillRows | None


BatchMetadata = AttentionMetadata | KernelMetadata
"""For torch operators, or for kernels."""


def kernel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    pages: tuple[Pages, Pages],
    metadata: KernelMetadata,
    *,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """Turn queries and keys, write the new keys and values to the cache, then attend.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key: [num_tokens, num_kv_heads, head_dim].
        value: as `key`.
        turn: positions [num_tokens], int64, and the table [max_position, head_dim], float32, that they choose from;
            `still` for what does not turn here.
        pages: this layer's keys and values; written in place.
        metadata: of the step.
        window: how many tokens a token sees, itself included; None: all.
        scale: scores are multiplied with it; None: 1 / sqrt(head_dim).
        soft_cap: scaled scores s become soft_cap * tanh(s / soft_cap); None: they stay.

    Returns:
        [num_tokens, num_heads, head_dim].
    """
    keys, values = pages
    caches, scales = (keys.numbers, values.numbers), (keys.scales, values.scales)
    query, key = write_kv_cache(query, key, value, *turn, *caches, metadata.slot_mapping, *scales)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    attended: list[torch.Tensor] = []
    num_decodes = 0
    if metadata.decodes is not None:
        decodes = metadata.decodes
        num_decodes = decodes.seq_lens.shape[0]
        attended.append(
            decode_attention(
                query[:num_decodes],
                *caches,
                decodes.block_table,
                decodes.seq_lens,
                decodes.max_seq_len,
                scale,
                window or 0,
                soft_cap or 0.0,
                *scales,
            )
        )
    if metadata.prefills is not None:
        prefills = metadata.prefills
        attended.append(
            prefill_attention(
                query[num_decodes:],
                # as later steps will read them, so that an answer does not depend on how its prompt was cut
                keys.as_read(key[num_decodes:]),
                values.as_read(value[num_decodes:]),
                *caches,
                prefills.block_table,
                prefills.cu_seqlens,
                prefills.context_lens,
                prefills.max_num_new,
                scale,
                window or 0,
                soft_cap or 0.0,
                *scales,
            )
        )
    return attended[0] if len(attended) == 1 else torch.cat(attended)


def still(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What turns nothing: for queries and keys of which only a part turns, and has been turned before."""
    num_tokens, _, head_dim = query.shape
    table = torch.zeros(1, head_dim, dtype=torch.float32, device=query.device)
    table[:, : head_dim // 2] = 1  # cosines; the sines are 0
    return torch.zeros(num_tokens, dtype=torch.int64, device=query.device), table
