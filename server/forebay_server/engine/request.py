"""Request: the state of one choice of one request while the engine serves it. No tensors."""

import random
from dataclasses import dataclass
from enum import Enum, auto

from forebay_server.engine.block_pool import CacheNamespace, ParentNode
from forebay_server.engine.scheduler_output import PENDING_TOKEN_ID, SampledToken, ScheduledRequest
from forebay_server.messages import AddRequest, FinishReason, RequestOutput, TokenLogprobs


class RequestStatus(Enum):
    """Where a request is. A preempted one is waiting again, with no blocks."""

    HELD = auto()
    """Not queued yet: something that it needs, such as its grammar, is still being made."""
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True)
class Tenant:
    """Whoever shares the engine fairly with others."""

    name: str
    num_tokens: float
    """Computed for it, counted from where it started."""


class Request:
    """Owned and changed by the scheduler alone.

    Args:
        message: what the API process asked for.
        sequence_number: breaks ties of arrival.
        tenant: whom its tokens are booked on.
        max_num_tokens: prompt and answer together can be no longer.
    """

    __slots__ = (
        "arrival_time",
        "block_ids",
        "choice_index",
        "decode",
        "ending_token_ids",
        "is_host_bound",
        "last_node",
        "leader",
        "max_num_tokens",
        "namespace",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hashed_blocks",
        "num_leader_blocks",
        "num_pooled_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_slots",
        "num_steps_in_flight",
        "order",
        "pooled_sum",
        "pooling",
        "prompt_logprobs",
        "queue_seconds",
        "ready_decode",
        "request_id",
        "sampling",
        "seed",
        "status",
        "tenant",
        "token_ids",
    )

    def __init__(self, message: AddRequest, sequence_number: int, tenant: Tenant, max_num_tokens: int) -> None:
        self.request_id = message.request_id
        self.sampling = sampling = message.sampling
        self.choice_index = message.choice_index
        self.arrival_time = message.arrival_time
        self.seed = random.getrandbits(63) if sampling.seed is None else sampling.seed
        self.order = (message.priority, message.arrival_time, sequence_number)
        """Who is served first: the smaller one."""
        self.tenant = tenant
        self.token_ids = list(message.prompt_token_ids)
        """Prompt and answer so far: the known tokens."""
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.max_num_tokens = min(self.num_prompt_tokens + sampling.max_tokens, max_num_tokens)
        """With so many known tokens it ends."""
        self.ending_token_ids = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else sampling.eos_token_ids)}
        self.is_host_bound = message.grammar is not None or message.pooling is not None or sampling.looks_at_logits
        """Whether the host does something with its logits or hidden states: then no step runs ahead of its tokens."""
        self.status = RequestStatus.WAITING
        self.block_ids: list[int] = []
        """Blocks held, in the order of the tokens; shared with the steps in flight, so a new one after preemption."""
        self.num_slots = 0
        """Tokens that the blocks have room for."""
        self.num_computed_tokens = 0
        """Tokens whose keys and values are in the blocks, or will be when the steps in flight are done."""
        self.num_hashed_blocks = 0
        """Leading blocks that the prefix cache knows."""
        self.namespace = CacheNamespace(message.cache_salt, None)
        self.last_node: ParentNode = self.namespace
        """Parent of the next block in the prefix cache."""
        self.leader: Request | None = None
        """While waiting: a running request that computes blocks which this one wants to find in the prefix cache."""
        self.num_leader_blocks = 0
        """How many leading blocks they share."""
        self.num_steps_in_flight = 0
        """Steps scheduled and not committed that use the blocks."""
        self.decode: ScheduledRequest | None = None
        """What steps are told of it while it decodes, one token at a time: made once and changed from step to step."""
        self.ready_decode: ScheduledRequest | None = None
        """The same, while its next token is known and no step in flight computes it."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache at the first admission; None before."""
        self.queue_seconds: float | None = None
        """From arrival to the first step; None once reported."""
        self.num_preemptions = 0
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Of the prompt tokens from the second one on, as far as they are known."""
        self.pooling = message.pooling
        self.pooled_sum: list[float] = []
        """Of the hidden states pooled so far; they outlive a preemption."""
        self.num_pooled_tokens = 0

    def reset_blocks(self) -> None:
        """Forget blocks that were given back, and what was computed in them."""
        self.block_ids = []
        self.num_slots = 0
        self.num_computed_tokens = 0
        self.num_hashed_blocks = 0
        self.last_node = self.namespace
        self.decode = self.ready_decode = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens that no step has been scheduled for.

        0 while the next token is being sampled, -1 while a step that was scheduled ahead is to compute that one.
        """
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_unscored_tokens(self) -> int:
        """Prompt tokens whose log-probabilities are wanted and not known yet."""
        if self.sampling.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - 1 - len(self.prompt_logprobs)

    @property
    def max_cached_tokens(self) -> int:
        """Leading tokens that need not be computed when they are cached; whoever wants logits of a token does."""
        if self.pooling == "mean":
            return self.num_pooled_tokens
        return len(self.prompt_logprobs) if self.num_unscored_tokens else len(self.token_ids) - 1

    @property
    def embedding(self) -> list[float] | None:
        """The pooled vector, once every token has been computed; empty when none is wanted."""
        if self.pooling is None or self.num_uncomputed_tokens or self.num_steps_in_flight:
            return None
        if self.pooling == "none":
            return []
        return [value / self.num_pooled_tokens for value in self.pooled_sum]

    def add_pooled(self, scheduled: ScheduledRequest, pooled: list[float]) -> None:
        """Add what a step found."""
        self.num_pooled_tokens += scheduled.num_pooled_rows
        total = self.pooled_sum or [0.0] * len(pooled)
        self.pooled_sum = [before + new for before, new in zip(total, pooled, strict=True)]

    def start(self, num_new: int) -> ScheduledRequest:
        """Book the next `num_new` tokens into a step."""
        sampling = self.sampling
        context_len = self.num_computed_tokens
        self.num_computed_tokens += num_new
        self.num_steps_in_flight += 1
        first_scored, scored = context_len, list[int]()
        if self.num_unscored_tokens:
            first_scored = max(context_len, len(self.prompt_logprobs))
            end_scored = min(context_len + num_new + 1, self.num_prompt_tokens)
            scored = self.token_ids[first_scored + 1 : end_scored]
        return ScheduledRequest(
            request_id=self.request_id,
            token_ids=self.token_ids[context_len : context_len + num_new],
            context_len=context_len,
            block_ids=self.block_ids,
            is_sampled=self.num_uncomputed_tokens == 0 and self.pooling is None,
            sampling=sampling,
            seed=self.seed,
            choice_index=self.choice_index,
            num_output_tokens=self.num_output_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            known_token_ids=self.token_ids if sampling.looks_back else [],
            first_scored_row=first_scored - context_len if scored else 0,
            scored_token_ids=scored,
            pooling=self.pooling,
            first_pooled_row=self._first_pooled_row(context_len, num_new) if self.pooling else 0,
        )

    def _first_pooled_row(self, context_len: int, num_new: int) -> int:
        """Of the next `num_new` tokens, already booked."""
        if self.pooling == "mean":
            return min(max(0, self.num_pooled_tokens - context_len), num_new)
        return num_new - (self.pooling == "last" and self.num_uncomputed_tokens == 0)

    def decode_ahead(self) -> ScheduledRequest | None:
        """What a step would compute of the token that a step in flight samples; None where there is no such token.

        There is none, either, when that token is the last one in any case.
        """
        num_known = len(self.token_ids)
        is_sampling = self.num_computed_tokens == num_known and self.num_steps_in_flight > 0
        if not is_sampling or num_known + 1 >= self.max_num_tokens:
            return None
        return self._decode_of(PENDING_TOKEN_ID, num_known)

    def start_decode(self) -> None:
        """Book `ready_decode`, the one known token that is not computed, or `decode_ahead` into a step."""
        self.ready_decode = None
        self.num_computed_tokens += 1
        self.num_steps_in_flight += 1

    def append(self, token: SampledToken) -> RequestOutput:
        """Take in the next token; says what there is to tell, with `finish_reason` when the request ends with it."""
        token_id = token.token_id
        self.token_ids.append(token_id)
        self.tenant.num_tokens += 1
        num_known = len(self.token_ids)
        if token.is_last or num_known >= self.max_num_tokens or token_id in self.ending_token_ids:
            reason = "stop" if token.is_last else self._finish_reason(token_id)
            if reason is not None:
                return self.output([token], reason)
        if self.num_computed_tokens < num_known:  # else a step that was scheduled ahead computes it already
            if self.decode is None:
                self.decode = self._decode_of(token_id, num_known - 1)
            else:
                self.decode.token_ids = [token_id]
                self.decode.context_len = num_known - 1
                self.decode.num_output_tokens = num_known - self.num_prompt_tokens
            self.ready_decode = self.decode
        if token.logprobs is not None or self.queue_seconds is not None:  # the first token tells that, and its prompt
            return self.output([token], None)
        return RequestOutput(
            request_id=self.request_id, token_ids=[token_id], num_cached_tokens=self.num_cached_tokens or 0
        )

    def output(
        self,
        tokens: list[SampledToken],
        reason: FinishReason | None,
        *,
        error: str | None = None,
        embedding: list[float] | None = None,
    ) -> RequestOutput:
        """What there is to tell of new tokens, or of the end."""
        queue_seconds, self.queue_seconds = self.queue_seconds, None
        return RequestOutput(
            request_id=self.request_id,
            token_ids=[token.token_id for token in tokens],
            finish_reason=reason,
            stop_token_id=self._stop_token_id(tokens) if reason == "stop" else None,
            num_cached_tokens=self.num_cached_tokens or 0,
            queue_seconds=queue_seconds,
            logprobs=[token.logprobs for token in tokens if token.logprobs is not None]
            if self.sampling.logprobs is not None
            else None,
            prompt_logprobs=self.prompt_logprobs
            if self.sampling.prompt_logprobs is not None
            and (embedding is not None or (tokens and self.num_output_tokens == 1))
            else None,
            embedding=embedding,
            error=error,
        )

    def _decode_of(self, token_id: int, position: int) -> ScheduledRequest:
        """What a step is told that computes one token of the answer."""
        return ScheduledRequest(
            request_id=self.request_id,
            token_ids=[token_id],
            context_len=position,
            block_ids=self.block_ids,
            is_sampled=True,
            sampling=self.sampling,
            seed=self.seed,
            choice_index=self.choice_index,
            num_output_tokens=position + 1 - self.num_prompt_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            known_token_ids=self.token_ids if self.sampling.looks_back else [],
        )

    def _stop_token_id(self, tokens: list[SampledToken]) -> int | None:
        last = tokens[-1].token_id if tokens else None
        return last if last in self.ending_token_ids else None

    def _finish_reason(self, token_id: int) -> FinishReason | None:
        """Why the request ends with the token just appended, if it does."""
        if token_id in self.ending_token_ids and self.num_output_tokens > self.sampling.min_tokens:
            return "stop"
        return "length" if len(self.token_ids) >= self.max_num_tokens else None
