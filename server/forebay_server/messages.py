"""What travels between the API process and the engine process (msgpack over ZeroMQ). Plain data, no text, no tensors.

API -> engine: AddRequest, AbortRequests, ResetPrefixCache, Shutdown.
engine -> API: EngineReady, StepOutputs, EngineFailed.
"""

from typing import Literal

import msgspec

from forebay_server.sampling_params import SamplingParams
from forebay_server.structured.grammar import Grammar

FinishReason = Literal["stop", "length", "abort", "error"]
NOTHING_LEFT = (
    "no token is left to pick: grammar, allowed_token_ids, bad_words, logit_bias and min_tokens exclude every one"
)
"""The one error of an output that is the request's own fault."""
Pooling = Literal["last", "mean", "none"]
"""How the final hidden states of a prompt become one vector; `none`: not at all, only the prompt is computed."""


GRAMMAR_ERROR = "the grammar "
"""How the error of a request begins whose grammar is to blame: the client's doing, not the engine's."""


class AddRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Serve one choice of one request. `n` choices are `n` messages that share their prompt's blocks."""

    request_id: str
    """Unique in the engine's life; made by the API process, never by the client."""
    prompt_token_ids: list[int]
    """Checked by the API process: not empty, inside the vocabulary, shorter than max_model_len."""
    sampling: SamplingParams
    choice_index: int = 0
    """Part of the random key: two choices of one seed differ."""
    priority: int = 0
    """Lower is served first."""
    tenant: str = ""
    """Tenants take turns, whatever each has queued; the empty name is one, too."""
    arrival_time: float = 0.0
    """CLOCK_MONOTONIC seconds; the same clock in every process of the machine."""
    cache_salt: str = ""
    """Requests share cached prefixes only within one salt."""
    pooling: Pooling | None = None
    """Set: no token is generated; the only output carries `embedding`. Such a prompt may fill the whole context."""
    grammar: Grammar | None = None
    """What the text may be; checked by the API process as far as that goes without the vocabulary."""


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """Drop these requests; unknown ids are ignored (they may just have finished)."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget every cached block that no running request holds."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the engine process; requests still there are aborted."""


ToEngine = AddRequest | AbortRequests | ResetPrefixCache | Shutdown


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position (natural log, of the model's raw distribution)."""

    chosen: float
    top_token_ids: list[int]
    top_logprobs: list[float]


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did for one request."""

    request_id: str
    token_ids: list[int] = []
    """Newly generated, in order; the stop or end-of-sequence token included."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """Which token ended it, for finish_reason `stop`."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    queue_seconds: float | None = None
    """With the first output: from `arrival_time` to the first step that ran the request."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each of `token_ids` when asked for."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """With the first token, when asked for: one entry for each prompt token but the first."""
    embedding: list[float] | None = None
    """For requests with `pooling`: the pooled vector as it is, [hidden_size], not normalized."""
    error: str | None = None
    """For finish_reason `error`: what went wrong with this request."""


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """The news of one step, for every request that has some."""

    outputs: list[RequestOutput]


ComputedBy = Literal["torch", "cpu library", "triton"]
"""What computes steps: torch operators, the C++ library, or Triton kernels."""


class EngineReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded, a warm-up generation ran; what the plan is compared with."""

    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    kv_cache_tokens: int
    kv_bytes_per_token: int
    weight_bytes: int
    activation_peak_bytes: int | None = None
    """The most that the largest step took beside weights and cache; None: not measured."""
    free_bytes: int | None = None
    """Of the device before anything was loaded."""
    dtype: str
    device: str
    computed_by: ComputedBy = "torch"


class EngineFailed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The engine ends (also when it could not start); the fields of `StartupError`."""

    exit_code: int
    reason: str
    message: str
    need_bytes: int | None = None
    have_bytes: int | None = None
    suggestion: str | None = None


ToApi = EngineReady | StepOutputs | EngineFailed
