"""What must hold whatever comes: random arrivals, aborts and late commits on a small pool."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_server.engine.scheduler import Scheduler
from forebay_server.engine.scheduler_output import PENDING_TOKEN_ID, SchedulerOutput
from forebay_server.messages import RequestOutput
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.fake_engine import (
    FakeRunner,
    answer_of,
    expected_answer,
    make_request,
    make_scheduler,
)

NUM_BLOCKS = 40


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt_length: int
    shared_prefix: bool
    max_tokens: int
    priority: int
    abort_after: int | None
    prompt_logprobs: int | None
    tenant: str
    held_for: int
    """Steps until its grammar is ready; 0: it has none."""
    stop_token_ids: tuple[int, ...]


arrivals = st.builds(
    Arrival,
    step=st.integers(0, 30),
    prompt_length=st.integers(1, 70),
    shared_prefix=st.booleans(),
    max_tokens=st.integers(1, 40),
    priority=st.integers(-1, 1),
    abort_after=st.one_of(st.none(), st.integers(0, 20)),
    prompt_logprobs=st.sampled_from([None, None, 0]),
    tenant=st.sampled_from(["", "", "a", "b"]),
    held_for=st.sampled_from([0, 0, 0, 1, 7]),
    stop_token_ids=st.sampled_from([(), (), tuple(range(0, 1000, 9))]),
)


def prompt_of(index: int, arrival: Arrival) -> list[int]:
    start = 0 if arrival.shared_prefix else 100 * (index + 1) % 900
    return [start + position for position in range(arrival.prompt_length)]


class World:
    """Runs a scheduler with commits that lag behind, and notes everything that it says."""

    def __init__(self, scheduler: Scheduler, delays: list[int], *, is_ahead: bool) -> None:
        self.scheduler = scheduler
        self.runner = FakeRunner(NUM_BLOCKS)
        self.delays = delays
        self.is_ahead = is_ahead
        self.in_flight: deque[SchedulerOutput] = deque()
        self.outputs: dict[str, list[RequestOutput]] = {}

    def step(self, number: int) -> None:
        step = self.scheduler.schedule(ahead=self.is_ahead and self.scheduler.can_run_ahead)
        limits = self.scheduler.limits
        assert step.num_tokens <= limits.max_num_batched_tokens
        assert self.scheduler.num_running <= limits.max_num_seqs
        assert all(request.token_ids for request in step.requests)
        assert not any(PENDING_TOKEN_ID in tokens for _, tokens in self.scheduler.pool._block_by_key)
        self.in_flight.append(step)
        allowed_lag = self.delays[number % len(self.delays)]
        while len(self.in_flight) > allowed_lag:
            self.commit_oldest()

    def commit_oldest(self) -> None:
        step = self.in_flight.popleft()
        # the fake device computes at the last moment, so blocks that were freed too early are seen
        for output in self.scheduler.commit(step.step_id, self.runner.run(step)):
            self.outputs.setdefault(output.request_id, []).append(output)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(arrivals, min_size=1, max_size=12),
    delays=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    budget=st.sampled_from([1, 7, 16, 64]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    threshold=st.sampled_from([None, 1, 5, 100]),
    is_ahead=st.booleans(),
)
def test_p12_every_request_ends_right_and_no_block_is_lost(
    requests: list[Arrival],
    delays: list[int],
    budget: int,
    max_num_seqs: int,
    threshold: int | None,
    *,
    is_ahead: bool,
) -> None:
    scheduler = make_scheduler(
        NUM_BLOCKS,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=threshold,
    )
    world = World(scheduler, delays, is_ahead=is_ahead)
    last_arrival = max(arrival.step for arrival in requests)
    number = 0
    while number <= last_arrival + 20 or scheduler.has_work:
        for index, arrival in enumerate(requests):
            if arrival.step == number:
                prompt = prompt_of(index, arrival)
                sampling = SamplingParams(
                    max_tokens=arrival.max_tokens,
                    temperature=0,
                    prompt_logprobs=arrival.prompt_logprobs,
                    stop_token_ids=arrival.stop_token_ids,
                )
                message = make_request(
                    str(index),
                    prompt,
                    sampling=sampling,
                    priority=arrival.priority,
                    arrival_time=number,
                    tenant=arrival.tenant,
                )
                scheduler.add(message, held=arrival.held_for > 0)
            if arrival.step + arrival.held_for == number:
                scheduler.unhold(str(index))
            if arrival.abort_after is not None and arrival.step + arrival.abort_after == number:
                scheduler.abort([str(index)])
        world.step(number)
        number += 1
        assert number < 20_000, "somebody starves"
    while world.in_flight:
        world.commit_oldest()
    for index, arrival in enumerate(requests):
        check_answer(world.outputs[str(index)], arrival, prompt_of(index, arrival))
    assert scheduler.pool.num_held == 0
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_tenants) == (0, 0, 0)
    assert scheduler.num_unused_slots == 0


def check_answer(outputs: list[RequestOutput], arrival: Arrival, prompt: list[int]) -> None:
    """The answer is what the model says to this prompt alone, and it ended once, for the right reason."""
    answer = [token_id for output in outputs for token_id in output.token_ids]
    reasons = [output.finish_reason for output in outputs if output.finish_reason is not None]
    assert len(reasons) == 1
    assert outputs[-1].finish_reason is not None
    assert answer == expected_answer(prompt, len(answer))
    scores = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert len(scores) == (arrival.prompt_logprobs is not None and bool(answer))
    assert all([score.chosen for score in found] == [-float(token) for token in prompt[1:]] for found in scores)
    assert not set(answer[:-1]) & set(arrival.stop_token_ids), "it went on past a token that ends it"
    if reasons[0] == "abort":
        assert arrival.abort_after is not None
    elif reasons[0] == "stop":
        assert answer[-1] in arrival.stop_token_ids
    else:
        assert reasons[0] == "length"
        assert len(answer) == arrival.max_tokens
    assert all(output.num_cached_tokens < len(prompt) for output in outputs)


def test_a_step_ahead_computes_the_token_that_the_one_before_samples() -> None:
    """One step in flight all the time: as many steps as without, each scheduled before the last is committed."""
    scheduler = make_scheduler(NUM_BLOCKS)
    world = World(scheduler, [1], is_ahead=True)
    scheduler.add(make_request("a", [5, 6, 7], max_tokens=6))
    for number in range(7):
        world.step(number)
    assert [len(step.requests) for step in world.in_flight] == [0]  # known: the last token is no step's input
    assert answer_of(world.outputs["a"]) == expected_answer([5, 6, 7], 6)
    assert world.runner.num_put_in == 5


def test_a_token_that_ends_a_request_leaves_a_surplus_one_that_nobody_sees() -> None:
    scheduler = make_scheduler(NUM_BLOCKS)
    world = World(scheduler, [1], is_ahead=True)
    answer = expected_answer([5, 6, 7], 5)
    sampling = SamplingParams(max_tokens=20, temperature=0, stop_token_ids=(answer[-1],))
    scheduler.add(make_request("a", [5, 6, 7], sampling=sampling))
    number = 0
    while scheduler.has_work:
        world.step(number)
        number += 1
    assert answer_of(world.outputs["a"]) == answer
    assert scheduler.pool.num_held > 0  # a step in flight still writes to them
    while world.in_flight:
        world.commit_oldest()
    assert answer_of(world.outputs["a"]) == answer
    assert scheduler.pool.num_held == 0


def test_whoever_lacks_blocks_waits_for_the_last_one_and_preempts_nobody_else() -> None:
    """With a step in flight the last request cannot be preempted; the one in front of it is spared all the same."""
    scheduler = make_scheduler(6)
    world = World(scheduler, [1], is_ahead=True)
    prompts = [[0] * 7, [1] * 5, [2] * 5]  # the first one needs a third block while the others have slots left
    for index, prompt in enumerate(prompts):
        scheduler.add(make_request(str(index), prompt, max_tokens=12, arrival_time=index))
    first, last = scheduler._requests["0"], scheduler._requests["2"]
    number, num_missed = 0, 0
    while scheduler.has_work or world.in_flight:
        world.step(number)
        number += 1
        is_served = any(request.request_id == "0" for step in world.in_flight for request in step.requests)
        num_missed += not is_served and "0" in scheduler._requests
        assert number < 200
        if not scheduler.has_work:
            while world.in_flight:
                world.commit_oldest()
    assert first.num_preemptions == 0
    assert num_missed == 2  # a step each time that it lacks one, for those behind it wait, too
    assert last.num_preemptions > 0
    for index, prompt in enumerate(prompts):
        assert answer_of(world.outputs[str(index)]) == expected_answer(prompt, 12)


@pytest.mark.parametrize(
    "sampling",
    [{"logprobs": 0}, {"prompt_logprobs": 0}, {"min_tokens": 1}, {"presence_penalty": 0.5}, {"logit_bias": {3: 1.0}}],
    ids=str,
)
def test_no_step_runs_ahead_while_somebody_needs_the_host(sampling: dict[str, Any]) -> None:
    scheduler = make_scheduler(NUM_BLOCKS)
    scheduler.add(make_request("plain", [1, 2]))
    before = scheduler.can_run_ahead
    scheduler.add(make_request("bound", [1, 2], sampling=SamplingParams(max_tokens=3, **sampling)))
    meanwhile = scheduler.can_run_ahead
    scheduler.abort(["bound"])
    assert (before, meanwhile, scheduler.can_run_ahead) == (True, False, True)
