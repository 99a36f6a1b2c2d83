"""Scheduler: which tokens of which requests the next step computes. No tensors, no clock but arrival times.

There are no phases: every step gives each request the tokens that are known and not yet computed, as far as the token
budget goes. A new prompt, a chunk of a long one, one decoded token and a request that starts over after preemption are
all the same thing. Running requests come first, in order of (priority, arrival); then waiting ones, in turn between
tenants (`waiting_queue`); what is left of the budget goes to long prompts, which were held to a share of it so far.
When blocks run out the last running request is preempted: it gives its blocks back and computes them again later.

`schedule()` and `commit()` are apart, so that a step can be scheduled before the one before it is committed: a request
whose next token is being sampled simply has nothing to compute, or, in a step that is scheduled ahead, that very token,
which the device puts in. Blocks enter the prefix cache at commit, and are freed when no step in flight uses them.
"""

import time
from bisect import insort
from collections.abc import Callable, Iterable, Mapping

from forebay_server.engine.block_pool import BlockPool
from forebay_server.engine.limits import SchedulerLimits, why_impossible
from forebay_server.engine.prefix_leaders import PrefixLeaders, is_following
from forebay_server.engine.request import Request, RequestStatus
from forebay_server.engine.request_blocks import RequestBlocks
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput, StepCounters
from forebay_server.engine.step import Step
from forebay_server.engine.waiting_queue import WaitingQueue
from forebay_server.messages import AddRequest, RequestOutput

_FINISHED = RequestStatus.FINISHED  # looking it up in the enum for every token would cost more than comparing it


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
        self._blocks = RequestBlocks(pool)
        self._debug = debug
        self._clock = clock
        self._requests: dict[str, Request] = {}
        """Every request that has not finished."""
        self._waiting = WaitingQueue()
        self._running: list[Request] = []
        """Sorted by order."""
        self._steps_in_flight: dict[int, Step] = {}
        self._finished_in_flight: list[Request] = []
        """Ended, but a step in flight still uses their blocks."""
        self._outputs: list[RequestOutput] = []
        """News from outside commit (refusals, aborts), given out with the next commit."""
        self._counters = StepCounters()
        self._num_added = 0
        self._num_held = 0
        self._num_host_bound = 0
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
        tenant = self._waiting.enter(message.tenant)
        request = Request(message, self._num_added, tenant, self._max_num_tokens)
        self._num_added += 1
        self._requests[request.request_id] = request
        self._num_host_bound += request.is_host_bound
        if held:
            request.status = RequestStatus.HELD
            self._num_held += 1
        else:
            self._waiting.add(request)

    def unhold(self, request_id: str) -> None:
        """Queue a held request, at the place of its arrival; ignored when it has ended meanwhile."""
        request = self._requests.get(request_id)
        if request is not None and request.status is RequestStatus.HELD:
            self._num_held -= 1
            request.status = RequestStatus.WAITING
            self._waiting.add(request)

    def fail(self, request_id: str, error: str) -> None:
        """End a request with an error, told with the next commit; ignored when it has ended meanwhile."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request)
            self._outputs.append(request.output([], "error", error=error))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests at once, at any time; unknown ids are ignored. The `abort` outputs come with the next commit."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request)
                self._outputs.append(request.output([], "abort"))
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
    def can_run_ahead(self) -> bool:
        """Whether a step may be scheduled ahead: nobody's next token needs more than the device."""
        return not self._num_host_bound

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold none: new, held or preempted."""
        return len(self._waiting) + self._num_held

    @property
    def num_unused_slots(self) -> int:
        """Slots of held blocks for which no token is booked: at the end of each request's last block."""
        return sum([request.num_slots - request.num_computed_tokens for request in self._running])

    @property
    def num_tenants(self) -> int:
        """Tenants that have requests."""
        return self._waiting.num_tenants

    def take_counters(self) -> StepCounters:
        """What happened since the last call."""
        counters, self._counters = self._counters, StepCounters()
        return counters

    # ---- a step ----

    def schedule(self, *, ahead: bool = False) -> SchedulerOutput:
        """Decide the next step. It may be empty; it must be committed all the same.

        Args:
            ahead: give requests whose next token is sampled by the step in flight that token to compute; only while
                `can_run_ahead`, and for a runner that puts it in.
        """
        self._last_step_id += 1
        step = Step(self.limits.max_num_batched_tokens)
        preemptions_before = self._counters.new_preemptions
        self._schedule_running(step, ahead=ahead)
        # a newcomer would take what was just freed, or what somebody waits for
        if self._counters.new_preemptions == preemptions_before and not step.waits_for_blocks:
            self._schedule_waiting(step)
        if step.unfinished and step.budget:
            self._schedule_rest(step)
        num_tokens = self.limits.max_num_batched_tokens - step.budget
        self._waiting.advance(num_tokens)
        self._counters.new_computed_tokens += num_tokens
        self._steps_in_flight[self._last_step_id] = step
        self._check()
        return SchedulerOutput(self._last_step_id, step.scheduled, step.new_block_ids)

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
        step = self._steps_in_flight.pop(step_id)
        block_size, num_generated = self.pool.block_size, 0
        for request, scheduled in zip(step.requests, step.scheduled, strict=True):
            request.num_steps_in_flight -= 1
            if request.status is _FINISHED:
                continue
            token = sampled.get(request.request_id)
            if token is not None and token.error is not None:
                self._finish(request)
                outputs.append(request.output([], "error", error=token.error))
                continue
            num_done = scheduled.context_len + len(scheduled.token_ids)
            if num_done // block_size > request.num_hashed_blocks:
                self._blocks.remember(request, num_done)
            if scheduled.num_output_tokens == 0:
                self._commit_prompt(request, scheduled, token, outputs)
            if scheduled.is_sampled and token is not None:
                num_generated += 1
                output = request.append(token)
                outputs.append(output)
                if output.finish_reason is not None:
                    self._finish(request)
        self._counters.new_generation_tokens += num_generated
        self._release_finished()
        self._check()
        return outputs

    # ---- inside ----

    def _schedule_running(self, step: Step, *, ahead: bool) -> None:
        """Give running requests their tokens."""
        long_chunk = self.limits.long_chunk
        # long prompts together leave room for one more chunk, so that newcomers are admitted while they run
        long_budget = max(long_chunk, step.budget - long_chunk)
        running = self._running
        for num_seen, request in enumerate(running, 1):  # whoever is preempted meanwhile stands behind
            if step.budget <= 0 or step.waits_for_blocks:
                return
            decode = request.ready_decode
            if decode is None and ahead:
                decode = request.decode_ahead()
            if decode is not None:
                if request.num_computed_tokens < request.num_slots or self._grow(request, 1, step):
                    request.start_decode()
                    step.requests.append(request)
                    step.scheduled.append(decode)
                    step.budget -= 1
                continue
            # a long chunk leaves one token for each request behind it, so that nobody's decode waits for a prefill
            num_behind = len(running) - num_seen
            num_new = min(request.num_uncomputed_tokens, max(1, step.budget - num_behind))
            is_long = request.num_uncomputed_tokens > long_chunk
            if is_long:
                num_new = min(num_new, long_chunk, long_budget)
            if num_new > 0 and self._grow(request, num_new, step):
                step.add(request, num_new)
                if is_long:
                    long_budget -= num_new

    def _schedule_waiting(self, step: Step) -> None:
        """Admit waiting requests in turn while tokens, places and blocks last.

        Nobody overtakes the first one, but while a running request computes the very block that another needs next
        (choices of one prompt, a system prompt not yet cached), that one waits to find it computed.
        """
        if not self._waiting or not self._has_place(step):
            return
        leaders = PrefixLeaders(self.pool, self._running)
        for request in self._waiting.in_turn():
            if not is_following(request):
                cached = self._blocks.find_cached(request)
                leaders.find(request, cached)
            if request.leader is not None:
                continue
            if not self._admit(request, cached):
                return
            leaders.add(request)
            num_new = min(request.num_uncomputed_tokens, step.budget, self.limits.long_chunk)
            if not self._grow(request, num_new, step):
                return
            step.add(request, num_new)
            if not self._has_place(step):
                return

    def _has_place(self, step: Step) -> bool:
        return step.budget > 0 and len(self._running) < self.limits.max_num_seqs

    def _schedule_rest(self, step: Step) -> None:
        """Lengthen the chunks of long prompts by tokens that nobody else wants, in order; without preemption."""
        for index in step.unfinished:
            request, scheduled = step.requests[index], step.scheduled[index]
            num_more = min(request.num_uncomputed_tokens, step.budget)
            blocks = self._blocks.grow(request, num_more) if num_more else None
            if blocks is None:
                continue
            step.new_block_ids.extend(blocks)
            request.num_computed_tokens = scheduled.context_len  # book anew
            request.num_steps_in_flight -= 1
            step.scheduled[index] = request.start(len(scheduled.token_ids) + num_more)
            step.budget -= num_more

    def _commit_prompt(
        self, request: Request, scheduled: ScheduledRequest, token: SampledToken | None, outputs: list[RequestOutput]
    ) -> None:
        """Take in what is found in prompts only: log-probabilities and pooled hidden states."""
        if token is not None:
            request.prompt_logprobs += token.prompt_logprobs
            if token.pooled is not None:
                request.add_pooled(scheduled, token.pooled)
        embedding = request.embedding
        if embedding is not None:
            self._finish(request)
            outputs.append(request.output([], "stop", embedding=embedding))

    def _admit(self, request: Request, cached: list[int]) -> bool:
        """Make a waiting request run, with what the prefix cache has of it, if its known tokens have room."""
        if not self._blocks.hold_cached(request, cached):
            return False
        self._waiting.remove(request)
        insort(self._running, request, key=lambda one: one.order)
        request.status = RequestStatus.RUNNING
        if request.num_cached_tokens is None:
            self._note_first_admission(request)
        return True

    def _note_first_admission(self, request: Request) -> None:
        request.num_cached_tokens = request.num_computed_tokens
        request.queue_seconds = max(0.0, self._clock() - request.arrival_time)
        request.tenant.num_tokens += request.num_prompt_tokens - request.num_computed_tokens
        self._counters.new_prompt_tokens += request.num_prompt_tokens
        self._counters.new_prefix_cache_queries += request.num_prompt_tokens
        self._counters.new_prefix_cache_hits += request.num_cached_tokens

    def _grow(self, request: Request, num_new: int, step: Step) -> bool:
        """Get the blocks for `num_new` more tokens, preempting requests behind this one if need be.

        Returns:
            False when the request cannot go on in this step: it was preempted itself, or has to wait for a step in
            flight.
        """
        while (blocks := self._blocks.grow(request, num_new)) is None:
            if self._finished_in_flight:
                return False  # blocks come back by themselves at the next commit
            victim = self._running[-1]
            if victim.num_steps_in_flight:
                step.waits_for_blocks = True
                return False
            self._preempt(victim)
            if victim is request:
                return False
        step.new_block_ids.extend(blocks)
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it waits again, and starts over from what the prefix cache still has."""
        self._running.remove(request)
        self._blocks.release(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self._counters.new_preemptions += 1
        self._waiting.add(request)

    def _finish(self, request: Request) -> None:
        """Take a request out of the books; its blocks go back now or when its last step in flight is committed."""
        del self._requests[request.request_id]
        self._num_host_bound -= request.is_host_bound
        if request.status is RequestStatus.HELD:
            self._num_held -= 1
        else:
            queue = self._running if request.status is RequestStatus.RUNNING else self._waiting
            queue.remove(request)
        self._waiting.leave(request.tenant)
        request.status = RequestStatus.FINISHED
        if request.num_steps_in_flight:
            self._finished_in_flight.append(request)
        else:
            self._blocks.release(request)

    def _release_finished(self) -> None:
        for request in self._finished_in_flight:
            if request.num_steps_in_flight == 0:
                self._blocks.release(request)
        self._finished_in_flight = [request for request in self._finished_in_flight if request.num_steps_in_flight]

    def _check(self) -> None:
        if self._debug:
            self.pool.check(request.block_ids for request in (*self._running, *self._finished_in_flight))
