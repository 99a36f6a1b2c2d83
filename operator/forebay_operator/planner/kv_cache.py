"""KV cache: bytes per token and rank, and a budget in any form turned into one number of blocks."""

from dataclasses import dataclass

from forebay_operator.facts.model_facts import KVLayers, ModelFacts
from forebay_operator.planner.formats import NUMBER_BYTES
from forebay_operator.planner.request import KVBudget

SCALE_BYTES = 4
"""One float32 scale a token, layer and head for keys, and one for values (int8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheShape:
    """Bytes that the cache of one rank takes, by how many tokens it holds."""

    full_bytes_per_token: int
    """Layers that keep every token, latent ones included."""
    sliding_bytes_per_token: int
    """Layers that keep only a window."""
    window: int
    max_model_len: int
    max_num_batched_tokens: int
    block_size: int

    @property
    def sequence_tokens(self) -> int:
        """Slots of one sequence of the greatest length: whole blocks."""
        return _round_up(self.max_model_len, self.block_size)

    def sliding_tokens(self, tokens: int) -> int:
        """Slots of the layers with a window when the others have `tokens`.

        Each sequence keeps its window and the block that is being filled; the tokens of the running step come on top.
        """
        if not self.sliding_bytes_per_token:
            return 0
        kept = min(self.sequence_tokens, _round_up(self.window, self.block_size) + self.block_size)
        sequences = -(-tokens // self.sequence_tokens)
        return min(tokens, sequences * kept + _round_up(self.max_num_batched_tokens, self.block_size))

    def bytes_for(self, tokens: int) -> int:
        """Bytes of a cache of so many tokens."""
        sliding = self.sliding_tokens(tokens) * self.sliding_bytes_per_token
        return tokens * self.full_bytes_per_token + sliding

    def tokens_within(self, num_bytes: int) -> int:
        """The most whole blocks, in tokens, that fit in so many bytes; 0 when none does."""
        per_token = self.full_bytes_per_token or self.sliding_bytes_per_token
        low, high = 0, max(0, num_bytes) // (per_token * self.block_size)
        if not self.sliding_bytes_per_token:
            return high * self.block_size
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes_for(middle * self.block_size) <= num_bytes:
                low = middle
            else:
                high = middle - 1
        return low * self.block_size


def kv_bytes_per_token(facts: ModelFacts, kv_format: str) -> int:
    """Bytes that one token adds in the whole model, replicas not counted; windows not considered."""
    return sum(_group_bytes(kind, kind.num_kv_heads, kind.layers, kv_format) for kind in facts.kv_layers)


def kv_cache_shape(
    facts: ModelFacts,
    kv_format: str,
    *,
    tensor: int,
    pipeline: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    block_size: int,
) -> KVCacheShape:
    """The cache of the fullest rank: KV heads are divided or, when they are too few, repeated, and so are latents."""
    full = sliding = window = 0
    for kind in facts.kv_layers:
        heads = max(1, kind.num_kv_heads // tensor)
        num_bytes = _group_bytes(kind, heads, -(-kind.layers // pipeline), kv_format)
        if kind.kind == "sliding":
            sliding += num_bytes
            window = max(window, kind.window)
        else:
            full += num_bytes
    return KVCacheShape(
        full_bytes_per_token=full,
        sliding_bytes_per_token=sliding,
        window=window,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
    )


def wanted_tokens(budget: KVBudget, shape: KVCacheShape, free_bytes: int, num_ranks: int) -> int:
    """Tokens, in whole blocks, that a budget asks for.

    Args:
        budget: in any of its forms.
        shape: the cache of a rank.
        free_bytes: what the rank has left for it; for `percent` only.
        num_ranks: ranks of the replica; for `bytes` only.
    """
    if budget.kind == "sequences":
        return budget.amount * shape.sequence_tokens
    if budget.kind == "tokens":
        return _round_up(budget.amount, shape.block_size)
    if budget.kind == "bytes":
        return shape.tokens_within(budget.amount // num_ranks)
    return shape.tokens_within(max(0, free_bytes) * budget.amount // 100)


def _group_bytes(kind: KVLayers, heads: int, layers: int, kv_format: str) -> int:
    vectors = 1 if kind.kind == "latent" else 2
    scale = SCALE_BYTES if kv_format in ("int8", "fp8") else 0
    return layers * vectors * heads * (kind.head_dim * NUMBER_BYTES[kv_format] + scale)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
