"""Scheduler: which tokens of which requests the next step computes. No tensors, no clock but arrival times.

There are no phases: every step gives each request the tokens that are known and not yet computed, as far as the token
budget goes. A new prompt, a chunk of a long one, one decoded token and a request that starts over after preemption are
all the same thing. Running requests come first, in order of (priority, arrival); then waiting ones; what is left of the
budget goes to long prompts, which were held to a share of it so far. When blocks run out the last running request is
preempted: it gives its blocks back and computes them again later.

`schedule()` and `commit()` are apart, so that a step can be scheduled before the one before it is committed: a request
whose next token is being sampled simply has nothing to compute. Blocks enter the prefix cache only at commit, and are
freed only when no step in flight uses them.
"""

import time
from bisect import insort
from collections.abc import Callable, Iterable, Mapping

from forebay_server.engine.block_pool import BlockPool
from forebay_server.engine.limits import SchedulerLimits, why_impossible
from forebay_server.engine.prefix_leaders import PrefixLeaders, is_following
from forebay_server.engine.request import Request, RequestStatus
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput, StepCounters
from forebay_server.messages import AddRequest, FinishReason, RequestOutput


class Scheduler:
    """Queues and books of the engine.

    Args:
        limits: of steps and requests.
        pool: the blocks; used by this scheduler alone.
        debug: check after every change that no block is lost (slow).
        clock: same clock as `AddRequest.arrival_time`.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: BlockPool,
        *,
        debug: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.pool = pool
        self._debug = debug
        self._clock = clock
        self._requests: dict[str, Request] = {}
        """Every request that has not finished."""
        self._waiting: list[Request] = []
        """Sorted by order."""
        self._running: list[Request] = []
        """Sorted by order."""
        self._steps_in_flight: dict[int, list[tuple[Request, ScheduledRequest]]] = {}
        self._finished_in_flight: list[Request] = []
        """Ended, but a step in flight still uses their blocks."""
        self._outputs: list[RequestOutput] = []
        """News from outside commit (refusals, aborts), given out with the next commit."""
        self._counters = StepCounters()
        self._num_added = 0
        self._num_held = 0
        self._last_step_id = 0
        # a token that ends the request needs no slot of its own, hence one more than the pool keeps
        self._max_num_tokens = min(limits.max_model_len, pool.capacity_tokens + 1)

    # ---- what comes in ----

    def add(self, message: AddRequest, *, held: bool = False) -> None:
        """Queue a request; one that can never be served ends with `error` at the next commit.

        Args:
            message: what is wanted.
            held: keep it out of the queue until `unhold` (its grammar is being compiled); others are not held up.

        Raises:
            ValueError: the id is in use.
        """
        if message.request_id in self._requests:
            raise ValueError(f"request id {message.request_id!r} is in use")
        refusal = why_impossible(message, self.limits, self.pool.capacity_tokens)
        if refusal is not None:
            self._outputs.append(RequestOutput(request_id=message.request_id, finish_reason="error", error=refusal))
            return
        request = Request(message, self._num_added)
        self._num_added += 1
        self._requests[request.request_id] = request
        if held:
            request.status = RequestStatus.HELD
            self._num_held += 1
        else:
            insort(self._waiting, request, key=_order)

    def unhold(self, request_id: str) -> None:
        """Queue a held request, at the place of its arrival; ignored when it has ended meanwhile."""
        request = self._requests.get(request_id)
        if request is not None and request.status is RequestStatus.HELD:
            self._num_held -= 1
            request.status = RequestStatus.WAITING
            insort(self._waiting, request, key=_order)

    def fail(self, request_id: str, error: str) -> None:
        """End a request with an error, told with the next commit; ignored when it has ended meanwhile."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request)
            self._outputs.append(self._output(request, [], "error", error=error))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests at once, at any time; unknown ids are ignored. The `abort` outputs come with the next commit."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request)
                self._outputs.append(self._output(request, [], "abort"))
        self._check()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running requests go on."""
        self.pool.reset_cache()

    # ---- what can be asked ----

    @property
    def has_work(self) -> bool:
        """Whether there are requests that have not ended, held ones included, or news of some."""
        return bool(self._requests or self._outputs)

    @property
    def is_only_holding(self) -> bool:
        """Whether a step could do nothing, since every request is held."""
        return not self._outputs and len(self._requests) == self._num_held

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold none: new, held or preempted."""
        return len(self._waiting) + self._num_held

    def queue_position(self, request_id: str) -> int | None:
        """How many requests are to be admitted before this one; None when it does not wait."""
        request = self._requests.get(request_id)
        if request is None or request.status is not RequestStatus.WAITING:
            return None
        return self._waiting.index(request)

    def take_counters(self) -> StepCounters:
        """What happened since the last call."""
        counters, self._counters = self._counters, StepCounters()
        return counters

    # ---- a step ----

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. It may be empty; it must be committed all the same."""
        self._last_step_id += 1
        step: list[tuple[Request, ScheduledRequest]] = []
        new_block_ids: list[int] = []
        preemptions_before = self._counters.new_preemptions
        budget = self._schedule_running(self.limits.max_num_batched_tokens, step, new_block_ids)
        if self._counters.new_preemptions == preemptions_before:  # else a newcomer would take what was just freed
            budget = self._schedule_waiting(budget, step, new_block_ids)
        self._schedule_rest(budget, step, new_block_ids)
        self._steps_in_flight[self._last_step_id] = step
        self._check()
        return SchedulerOutput(self._last_step_id, [scheduled for _, scheduled in step], new_block_ids)

    def commit(self, step_id: int, sampled: Mapping[str, SampledToken]) -> list[RequestOutput]:
        """Take in what a step computed. Steps are committed in the order in which they were scheduled.

        Args:
            step_id: of the step.
            sampled: by request id, for every request whose next token was wanted; an entry with an error ends any
                request of the step. Requests that ended meanwhile are skipped.

        Returns:
            What there is to tell: one entry a request that got a token or ended.

        Raises:
            ValueError: not the oldest step in flight.
        """
        if next(iter(self._steps_in_flight), None) != step_id:
            raise ValueError(f"step {step_id} is not the oldest of those in flight: {list(self._steps_in_flight)}")
        outputs, self._outputs = self._outputs, []
        for request, scheduled in self._steps_in_flight.pop(step_id):
            request.num_steps_in_flight -= 1
            if request.status is RequestStatus.FINISHED:
                continue
            token = sampled.get(request.request_id)
            if token is not None and token.error is not None:
                self._finish(request)
                outputs.append(self._output(request, [], "error", error=token.error))
                continue
            self._remember_blocks(request, scheduled.context_len + len(scheduled.token_ids))
            if token is not None:
                request.prompt_logprobs += token.prompt_logprobs
                if token.pooled is not None:
                    request.add_pooled(scheduled, token.pooled)
            if scheduled.is_sampled and token is not None:
                outputs.append(self._append(request, token))
            elif (embedding := request.embedding) is not None:
                self._finish(request)
                outputs.append(self._output(request, [], "stop", embedding=embedding))
        self._release_finished()
        self._check()
        return outputs

    # ---- inside ----

    def _schedule_running(
        self, budget: int, step: list[tuple[Request, ScheduledRequest]], new_block_ids: list[int]
    ) -> int:
        """Give running requests their tokens; returns what is left of the budget."""
        index = 0
        long_chunk = self.limits.long_chunk
        # long prompts together leave room for one more chunk, so that newcomers are admitted while they run
        long_budget = max(long_chunk, budget - long_chunk)
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            index += 1
            # a long chunk leaves one token for each request behind it, so that nobody's decode waits for a prefill
            num_behind = len(self._running) - index
            num_new = min(request.num_uncomputed_tokens, max(1, budget - num_behind))
            is_long = request.num_uncomputed_tokens > long_chunk
            if is_long:
                num_new = min(num_new, long_chunk, long_budget)
            if num_new > 0 and self._grow(request, num_new, new_block_ids):
                step.append((request, request.start(num_new)))
                budget -= num_new
                if is_long:
                    long_budget -= num_new
        return budget

    def _schedule_waiting(
        self, budget: int, step: list[tuple[Request, ScheduledRequest]], new_block_ids: list[int]
    ) -> int:
        """Admit waiting requests in order while tokens, places and blocks last.

        Nobody overtakes the first one, but while a running request computes the very block that another needs next
        (choices of one prompt, a system prompt not yet cached), that one waits to find it computed.

        Returns:
            What is left of the budget.
        """
        if not self._waiting or len(self._running) >= self.limits.max_num_seqs:
            return budget
        leaders = PrefixLeaders(self.pool, self._running)
        index = 0
        while index < len(self._waiting) and budget > 0 and len(self._running) < self.limits.max_num_seqs:
            request = self._waiting[index]
            if not is_following(request):
                cached = self._cached_blocks(request)
                leaders.find(request, cached)
            if request.leader is not None:
                index += 1
                continue
            if not self._admit(request, cached):
                break
            leaders.add(request)
            num_new = min(request.num_uncomputed_tokens, budget, self.limits.long_chunk)
            if not self._grow(request, num_new, new_block_ids):
                break
            step.append((request, request.start(num_new)))
            budget -= num_new
        return budget

    def _schedule_rest(
        self, budget: int, step: list[tuple[Request, ScheduledRequest]], new_block_ids: list[int]
    ) -> None:
        """Lengthen the chunks of long prompts by tokens that nobody else wants, in order; without preemption."""
        for index, (request, scheduled) in enumerate(step):
            if scheduled.is_sampled or budget == 0:  # it has all that it knows
                continue
            num_more = min(request.num_uncomputed_tokens, budget)
            blocks = self.pool.allocate(self._num_missing_blocks(request, num_more))
            if blocks is None:
                continue
            request.block_ids.extend(blocks)
            new_block_ids.extend(blocks)
            request.num_computed_tokens = scheduled.context_len  # book anew
            request.num_steps_in_flight -= 1
            step[index] = request, request.start(len(scheduled.token_ids) + num_more)
            budget -= num_more

    def _cached_blocks(self, request: Request) -> list[int]:
        """What the prefix cache has of a waiting request, less tokens whose logits are wanted, such as the last."""
        max_blocks = request.max_cached_tokens // self.pool.block_size
        return self.pool.find_prefix(request.namespace, request.token_ids, max_blocks)

    def _admit(self, request: Request, cached: list[int]) -> bool:
        """Make a waiting request run, with what the prefix cache has of it, if its known tokens have room."""
        num_known = len(request.token_ids)
        num_needed = self.pool.num_blocks_for(num_known) - len(cached) + self.pool.num_unheld_in(cached)
        if num_needed > self.pool.num_available:
            return False
        self.pool.hold(cached)
        self._waiting.remove(request)
        insort(self._running, request, key=_order)
        request.status = RequestStatus.RUNNING
        if cached:
            request.block_ids = cached
            request.num_computed_tokens = len(cached) * self.pool.block_size
            request.num_hashed_blocks = len(cached)
            request.last_node = self.pool.node_of(cached[-1])
        if request.num_cached_tokens is None:
            self._note_first_admission(request)
        return True

    def _note_first_admission(self, request: Request) -> None:
        request.num_cached_tokens = request.num_computed_tokens
        request.queue_seconds = max(0.0, self._clock() - request.arrival_time)
        self._counters.new_prompt_tokens += request.num_prompt_tokens
        self._counters.new_prefix_cache_queries += request.num_prompt_tokens
        self._counters.new_prefix_cache_hits += request.num_cached_tokens

    def _grow(self, request: Request, num_new: int, new_block_ids: list[int]) -> bool:
        """Get the blocks for `num_new` more tokens, preempting requests behind this one if need be.

        Returns:
            False when the request cannot go on in this step: it was preempted itself, or has to wait for a step in
            flight.
        """
        num_missing = self._num_missing_blocks(request, num_new)
        while (blocks := self.pool.allocate(num_missing)) is None:
            if self._finished_in_flight:
                return False  # blocks come back by themselves at the next commit
            victim = next((last for last in reversed(self._running) if last.num_steps_in_flight == 0), None)
            if victim is None or victim.order < request.order:
                return False
            self._preempt(victim)
            if victim is request:
                return False
        request.block_ids.extend(blocks)
        new_block_ids.extend(blocks)
        return True

    def _num_missing_blocks(self, request: Request, num_new: int) -> int:
        return self.pool.num_blocks_for(request.num_computed_tokens + num_new) - len(request.block_ids)

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it waits again, and starts over from what the prefix cache still has."""
        self._running.remove(request)
        self._release_blocks(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self._counters.new_preemptions += 1
        insort(self._waiting, request, key=_order)

    def _append(self, request: Request, token: SampledToken) -> RequestOutput:
        request.token_ids.append(token.token_id)
        self._counters.new_generation_tokens += 1
        reason = request.finish_reason_after(token.token_id, self._max_num_tokens)
        if reason is not None:
            self._finish(request)
        return self._output(request, [token], reason)

    def _output(
        self,
        request: Request,
        tokens: list[SampledToken],
        reason: FinishReason | None,
        *,
        error: str | None = None,
        embedding: list[float] | None = None,
    ) -> RequestOutput:
        queue_seconds, request.queue_seconds = request.queue_seconds, None
        return RequestOutput(
            request_id=request.request_id,
            token_ids=[token.token_id for token in tokens],
            finish_reason=reason,
            stop_token_id=tokens[-1].token_id if tokens and reason == "stop" else None,
            num_cached_tokens=request.num_cached_tokens or 0,
            queue_seconds=queue_seconds,
            logprobs=[token.logprobs for token in tokens if token.logprobs is not None]
            if request.sampling.logprobs is not None
            else None,
            prompt_logprobs=request.prompt_logprobs
            if tokens and request.num_output_tokens == 1 and request.sampling.prompt_logprobs is not None
            else None,
            embedding=embedding,
            error=error,
        )

    def _remember_blocks(self, request: Request, num_done: int) -> None:
        """Make the blocks that are full of computed tokens findable."""
        for index in range(request.num_hashed_blocks, num_done // self.pool.block_size):
            block_id = request.block_ids[index]
            request.last_node = self.pool.remember(request.last_node, request.token_ids, index, block_id)
            request.num_hashed_blocks = index + 1

    def _finish(self, request: Request) -> None:
        """Take a request out of the books; its blocks go back now or when its last step in flight is committed."""
        del self._requests[request.request_id]
        if request.status is RequestStatus.HELD:
            self._num_held -= 1
        else:
            (self._running if request.status is RequestStatus.RUNNING else self._waiting).remove(request)
        request.status = RequestStatus.FINISHED
        if request.num_steps_in_flight:
            self._finished_in_flight.append(request)
        else:
            self._release_blocks(request)

    def _release_finished(self) -> None:
        for request in self._finished_in_flight:
            if request.num_steps_in_flight == 0:
                self._release_blocks(request)
        self._finished_in_flight = [request for request in self._finished_in_flight if request.num_steps_in_flight]

    def _release_blocks(self, request: Request) -> None:
        self.pool.release(request.block_ids)
        request.reset_blocks()

    def _check(self) -> None:
        if self._debug:
            self.pool.check(request.block_ids for request in (*self._running, *self._finished_in_flight))


def _order(request: Request) -> tuple[int, float, int]:
    return request.order
