"""What a step and a request may have at most, and which prompts can never be served."""

from dataclasses import dataclass

from forebay_server.messages import AddRequest

LONG_CHUNKS_PER_STEP = 4
"""Without `long_prefill_token_threshold` a long prompt gets this part of a step while others want the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What a step and a request may have at most."""

    max_num_seqs: int
    """Running requests."""
    max_num_batched_tokens: int
    """Tokens in a step."""
    max_model_len: int
    """Prompt and answer together."""
    vocab_size: int
    """Token ids are below this."""
    long_prefill_token_threshold: int | None = None
    """Tokens of one prompt in a step while others want some; None: a quarter of the step."""

    @property
    def long_chunk(self) -> int:
        """The threshold that holds: 1 to max_num_batched_tokens."""
        wanted = self.long_prefill_token_threshold or self.max_num_batched_tokens // LONG_CHUNKS_PER_STEP
        return min(max(1, wanted), self.max_num_batched_tokens)


def why_impossible(request: AddRequest, limits: SchedulerLimits, capacity_tokens: int) -> str | None:
    """What makes a prompt one that can never be served, if anything.

    Args:
        request: with the prompt.
        limits: of the engine.
        capacity_tokens: of the whole KV cache.
    """
    num_tokens = len(request.prompt_token_ids)
    longest = limits.max_model_len - (request.pooling is None)  # an answer has at least one token
    if num_tokens == 0:
        return "the prompt has no tokens"
    if num_tokens > longest:
        return f"the prompt has {num_tokens} tokens; with max_model_len {limits.max_model_len} it needs to be shorter"
    if num_tokens > capacity_tokens:
        return f"the prompt has {num_tokens} tokens; the KV cache has room for {capacity_tokens}"
    if min(request.prompt_token_ids) < 0 or max(request.prompt_token_ids) >= limits.vocab_size:
        return f"a token id of the prompt is outside the vocabulary of {limits.vocab_size}"
    return None
