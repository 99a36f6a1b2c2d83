"""What must hold whatever comes: random arrivals, aborts and late commits on a small pool."""

from collections import deque
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_server.engine.scheduler import Scheduler
from forebay_server.engine.scheduler_output import SchedulerOutput
from forebay_server.messages import RequestOutput
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.fake_engine import FakeRunner, expected_answer, make_request, make_scheduler

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
)


def prompt_of(index: int, arrival: Arrival) -> list[int]:
    start = 0 if arrival.shared_prefix else 100 * (index + 1) % 900
    return [start + position for position in range(arrival.prompt_length)]


class World:
    """Runs a scheduler with commits that lag behind, and notes everything that it says."""

    def __init__(self, scheduler: Scheduler, delays: list[int]) -> None:
        self.scheduler = scheduler
        self.runner = FakeRunner(NUM_BLOCKS)
        self.delays = delays
        self.in_flight: deque[SchedulerOutput] = deque()
        self.outputs: dict[str, list[RequestOutput]] = {}

    def step(self, number: int) -> None:
        step = self.scheduler.schedule()
        limits = self.scheduler.limits
        assert step.num_tokens <= limits.max_num_batched_tokens
        assert self.scheduler.num_running <= limits.max_num_seqs
        assert all(request.token_ids for request in step.requests)
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
)
def test_p12_every_request_ends_right_and_no_block_is_lost(
    requests: list[Arrival], delays: list[int], budget: int, max_num_seqs: int, threshold: int | None
) -> None:
    scheduler = make_scheduler(
        NUM_BLOCKS,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=threshold,
    )
    world = World(scheduler, delays)
    last_arrival = max(arrival.step for arrival in requests)
    number = 0
    while number <= last_arrival + 20 or scheduler.has_work:
        for index, arrival in enumerate(requests):
            if arrival.step == number:
                prompt = prompt_of(index, arrival)
                sampling = SamplingParams(
                    max_tokens=arrival.max_tokens, temperature=0, prompt_logprobs=arrival.prompt_logprobs
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
    if reasons[0] == "abort":
        assert arrival.abort_after is not None
    else:
        assert reasons[0] == "length"
        assert len(answer) == arrival.max_tokens
    assert all(output.num_cached_tokens < len(prompt) for output in outputs)
