"""What one step will do, and what came of it: plain data between scheduler and model runner.

These are made or changed for every request in every step, so they are msgspec structs, which cost a tenth of frozen
dataclasses, and long lists are shared with the request rather than copied.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from forebay_server.messages import Pooling, TokenLogprobs
from forebay_server.sampling_params import SamplingParams

PENDING_TOKEN_ID = -1
"""Stands for the token that the step before samples: known to the device when it comes to it, to the host later."""


class ScheduledRequest(msgspec.Struct, kw_only=True, eq=False):
    """The part of one request that a step computes.

    The runner only reads, and only until the step is committed: afterwards the scheduler uses a decoding request's
    object again for its next token.
    """

    request_id: str
    token_ids: list[int]
    """The new tokens; `PENDING_TOKEN_ID` alone when the step before samples the one new token."""
    context_len: int
    """Tokens before them, computed in earlier steps."""
    block_ids: list[int]
    """For context and new tokens, perhaps for some more after them; the request's own list."""
    is_sampled: bool
    """Whether the last new token is the last known one, so that the next token is wanted."""
    sampling: SamplingParams
    seed: int
    choice_index: int
    num_output_tokens: int
    """Generated before this step: the position of the token to sample."""
    num_prompt_tokens: int = 0
    known_token_ids: list[int] = []
    """Prompt and answer so far, the request's own list; left empty when nothing in `sampling` looks at them."""
    first_scored_row: int = 0
    """The first new token whose logits score the prompt token after it."""
    scored_token_ids: list[int] = []
    """The prompt tokens to score: one for each row from there on; empty when no prompt_logprobs are asked for."""
    mask: npt.NDArray[np.uint32] | None = None
    """What the request's grammar allows: [ceil(vocab_size / 32)]; token t where bit t % 32 of word t // 32 is 1."""
    pooling: Pooling | None = None
    """How the hidden states become a vector; None: not at all."""
    first_pooled_row: int = 0
    """The first new token whose hidden state is pooled; all after it are, too."""

    @property
    def is_pending(self) -> bool:
        """Whether its one new token is sampled by the step before."""
        return self.token_ids[0] == PENDING_TOKEN_ID

    @property
    def num_pooled_rows(self) -> int:
        """New tokens whose hidden states are pooled in this step."""
        return len(self.token_ids) - self.first_pooled_row if self.pooling else 0


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step."""

    step_id: int
    requests: list[ScheduledRequest]
    new_block_ids: list[int]
    """Blocks first used in this step; they are cleared before."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(request.token_ids) for request in self.requests)


class SampledToken(msgspec.Struct, frozen=True):
    """What the step found for one request."""

    token_id: int = -1
    """-1: none was wanted."""
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] = []
    """One for each of `scored_token_ids`."""
    pooled: list[float] | None = None
    """The sum of the pooled hidden states: [hidden_size]."""
    is_last: bool = False
    """The request's grammar allows nothing after it, whatever the sampling parameters say."""
    error: str | None = None
    """Set: no token, the request fails with this."""


@dataclass(slots=True)
class StepCounters:
    """What happened since the counters were last taken (see `SharedState.record_step`)."""

    new_prompt_tokens: int = 0
    new_generation_tokens: int = 0
    new_preemptions: int = 0
    new_prefix_cache_queries: int = 0
    new_prefix_cache_hits: int = 0
    new_computed_tokens: int = 0
    """Of all steps, prompts and answers."""
