"""The engine gives a device its next step before the last one is done: a fake device that is done when it is asked."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_server.engine.engine import Engine
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput
from forebay_server.errors import ExitCode, StartupError
from forebay_server.messages import RequestOutput
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.fake_engine import (
    FakeRunner,
    answer_of,
    expected_answer,
    make_request,
    make_scheduler,
)
from tests.test_server.engine.test_engine import run


class FakeDevice(FakeRunner):
    """Computes a step when it is waited for, from what it was told when it was launched; notes what happens."""

    def __init__(self, num_blocks: int = 40) -> None:
        super().__init__(num_blocks)
        self.events: list[tuple[str, int]] = []
        self._just_sampled: set[str] = set()

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        assert not any(request.is_pending for request in step.requests)
        self.events.append(("run", step.step_id))
        return super().run(step)

    def launch(self, step: SchedulerOutput) -> Callable[[], dict[str, SampledToken]] | None:
        if any(request.sampling.looks_at_logits for request in step.requests):
            return None
        assert {request.request_id for request in step.requests if request.is_pending} <= self._just_sampled
        self._just_sampled = {request.request_id for request in step.requests if request.is_sampled}
        self.events.append(("launch", step.step_id))
        sent = replace(step, requests=[self._sent(request) for request in step.requests])
        return lambda: self._finish(sent)

    @staticmethod
    def _sent(request: ScheduledRequest) -> ScheduledRequest:
        return msgspec.structs.replace(request, token_ids=list(request.token_ids), block_ids=list(request.block_ids))

    def _finish(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        self.events.append(("wait", step.step_id))
        return super().run(step)


def test_each_step_is_launched_before_the_one_before_it_is_waited_for() -> None:
    device = FakeDevice()
    engine = Engine(make_scheduler(), device)
    engine.add(make_request("a", [1, 2], max_tokens=4))
    outputs = run(engine)
    assert answer_of(outputs["a"]) == expected_answer([1, 2], 4)
    assert [output.finish_reason for output in outputs["a"]] == [None, None, None, "length"]
    assert device.events == [
        ("launch", 1),
        ("launch", 2),
        ("wait", 1),
        ("launch", 3),
        ("wait", 2),
        ("launch", 4),
        ("wait", 3),
        ("wait", 4),
    ]


def test_without_overlap_the_device_is_given_one_step_at_a_time() -> None:
    device = FakeDevice()
    engine = Engine(make_scheduler(), device, overlaps=False)
    engine.add(make_request("a", [1, 2], max_tokens=3))
    assert answer_of(run(engine)["a"]) == expected_answer([1, 2], 3)
    assert [name for name, _ in device.events] == ["run"] * 3


def test_a_newcomer_joins_the_step_that_is_launched_next() -> None:
    device = FakeDevice()
    engine = Engine(make_scheduler(), device)
    engine.add(make_request("a", [1, 2], max_tokens=8))
    outputs = engine.step()  # two steps are launched
    engine.add(make_request("b", [3, 4, 5], max_tokens=2))
    for _ in range(2):
        outputs += engine.step()
    assert {output.request_id for output in outputs} == {"a", "b"}


def test_while_somebody_needs_the_host_steps_are_computed_one_at_a_time() -> None:
    device = FakeDevice()
    engine = Engine(make_scheduler(), device)
    engine.add(make_request("a", [1, 2], max_tokens=12))
    engine.step()
    engine.add(make_request("bound", [3, 4], sampling=SamplingParams(max_tokens=3, temperature=0, logprobs=0)))
    outputs = run(engine)
    assert answer_of(outputs["bound"]) == expected_answer([3, 4], 3)
    assert answer_of(outputs["a"]) == expected_answer([1, 2], 12)[1:]
    names = [name for name, _ in device.events]
    assert names[:4] == ["launch", "launch", "wait", "wait"]  # the one in flight is taken in first
    assert names[4:7] == ["run"] * 3
    assert names[7:10] == ["launch", "launch", "wait"]  # and then they overlap again


def test_a_step_that_ends_all_requests_is_followed_by_its_surplus_and_leaves_nothing() -> None:
    device = FakeDevice()
    scheduler = make_scheduler()
    engine = Engine(scheduler, device)
    answer = expected_answer([7, 8], 3)
    sampling = SamplingParams(max_tokens=50, temperature=0, stop_token_ids=(answer[-1],))
    engine.add(make_request("a", [7, 8], sampling=sampling))
    for _ in range(3):
        outputs = engine.step()
    assert outputs[-1].finish_reason == "stop"
    had_work = engine.has_work
    assert engine.step() == []
    assert (had_work, engine.has_work) == (True, False)
    assert scheduler.pool.num_held == 0
    assert device.events[-1] == ("wait", 4)


class Failing(FakeDevice):
    """Fails in one step: when it is launched, or when it is waited for."""

    def __init__(self, step_id: int, error: Exception, *, late: bool) -> None:
        super().__init__()
        self._step_id, self._error, self._is_late = step_id, error, late

    def launch(self, step: SchedulerOutput) -> Callable[[], dict[str, SampledToken]] | None:
        if step.step_id == self._step_id and not self._is_late:
            raise self._error
        return super().launch(step)

    def _finish(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        found = super()._finish(step)
        if step.step_id == self._step_id:
            raise self._error
        return found


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_step_ends_its_requests_though_the_next_one_runs_already(late: bool) -> None:
    scheduler = make_scheduler()
    engine = Engine(scheduler, Failing(2, IndexError("out of range"), late=late))
    engine.add(make_request("bad", [1, 2], max_tokens=9))
    outputs = engine.step()
    engine.add(make_request("good", [3, 4], max_tokens=3))
    while engine.has_work:
        outputs += engine.step()
    bad = [output for output in outputs if output.request_id == "bad"]
    assert answer_of(bad) == expected_answer([1, 2], 1)
    assert bad[-1].finish_reason == "error"
    assert "IndexError: out of range" in (bad[-1].error or "")
    assert answer_of([output for output in outputs if output.request_id == "good"]) == expected_answer([3, 4], 3)
    assert scheduler.pool.num_held == 0


def test_a_device_that_is_lost_while_a_step_is_waited_for_ends_the_engine() -> None:
    engine = Engine(make_scheduler(), Failing(1, torch.AcceleratorError("CUDA error: launch failure"), late=True))
    engine.add(make_request("a", [1], max_tokens=3))
    with pytest.raises(StartupError) as caught:
        engine.step()
    assert caught.value.exit_code == ExitCode.DEVICE_LOST


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt_length: int
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    is_host_bound: bool
    abort_after: int | None


arrivals = st.builds(
    Arrival,
    step=st.integers(0, 25),
    prompt_length=st.integers(1, 50),
    max_tokens=st.integers(1, 30),
    stop_token_ids=st.sampled_from([(), tuple(range(0, 1000, 9))]),
    is_host_bound=st.sampled_from([False, False, False, False, True]),
    abort_after=st.one_of(st.none(), st.none(), st.integers(0, 15)),
)


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(arrivals, min_size=1, max_size=10), num_blocks=st.sampled_from([14, 40]))
def test_answers_do_not_depend_on_overlap(requests: list[Arrival], num_blocks: int) -> None:
    """On a pool so small that requests are preempted, with aborts, stops and requests that need the host."""
    scheduler = make_scheduler(num_blocks)
    engine = Engine(scheduler, FakeDevice(num_blocks))
    outputs: dict[str, list[RequestOutput]] = {}
    number = 0
    while number <= 50 or engine.has_work:
        for index, arrival in enumerate(requests):
            if arrival.step == number:
                sampling = SamplingParams(
                    max_tokens=arrival.max_tokens,
                    temperature=0,
                    stop_token_ids=arrival.stop_token_ids,
                    logprobs=0 if arrival.is_host_bound else None,
                )
                prompt = [index] * arrival.prompt_length
                engine.add(make_request(str(index), prompt, sampling=sampling, arrival_time=number))
            if arrival.abort_after is not None and arrival.step + arrival.abort_after == number:
                engine.abort([str(index)])
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        number += 1
        assert number < 5000, "somebody starves"
    for index, arrival in enumerate(requests):
        answer = answer_of(outputs[str(index)])
        assert answer == expected_answer([index] * arrival.prompt_length, len(answer))
        assert [output.finish_reason for output in outputs[str(index)]].count(None) == len(outputs[str(index)]) - 1
        match outputs[str(index)][-1].finish_reason:
            case "stop":
                assert answer[-1] in arrival.stop_token_ids
            case "length":
                assert len(answer) == min(arrival.max_tokens, num_blocks * 4 + 1 - arrival.prompt_length)
            case reason:
                assert (reason, arrival.abort_after is None) == ("abort", False)
        assert not set(answer[:-1]) & set(arrival.stop_token_ids)
    assert scheduler.pool.num_held == 0
