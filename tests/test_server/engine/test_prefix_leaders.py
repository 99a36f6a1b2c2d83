"""Prompts that share their beginning and arrive together: what they share is computed once."""

import pytest

from forebay_server.engine.scheduler import Scheduler
from forebay_server.messages import AddRequest, RequestOutput
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.fake_engine import (
    BLOCK_SIZE,
    FakeRunner,
    answer_of,
    expected_answer,
    make_request,
    make_scheduler,
)


def run(scheduler: Scheduler, runner: FakeRunner) -> tuple[dict[str, list[RequestOutput]], int]:
    """Step to the end: the outputs by request, and how many tokens were computed."""
    outputs: dict[str, list[RequestOutput]] = {}
    num_computed = 0
    while scheduler.has_work:
        step = scheduler.schedule()
        num_computed += step.num_tokens
        for output in scheduler.commit(step.step_id, runner.run(step)):
            outputs.setdefault(output.request_id, []).append(output)
    return outputs, num_computed


@pytest.mark.parametrize("length", [3, BLOCK_SIZE, BLOCK_SIZE + 1, 41, 44])
@pytest.mark.parametrize("budget", [16, 200])
def test_choices_of_one_prompt_share_its_computation(length: int, budget: int) -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_batched_tokens=budget)
    prompt = list(range(length))
    for index in range(4):
        message = AddRequest(
            request_id=str(index),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=3, temperature=0),
            choice_index=index,
        )
        scheduler.add(message)
    outputs, num_computed = run(scheduler, FakeRunner(100))
    num_shared = (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert num_computed == length + 3 * (length - num_shared) + 4 * 2
    assert all(answer_of(outputs[str(index)]) == expected_answer(prompt, 3) for index in range(4))
    assert [outputs[str(index)][0].num_cached_tokens for index in range(4)] == [0, *3 * [num_shared]]


def test_a_system_prompt_is_computed_once_for_all_who_arrive_with_it() -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_batched_tokens=16)
    prompts = {str(index): [*range(40), 500 + index, 1, 2] for index in range(5)}
    for name, prompt in prompts.items():
        scheduler.add(make_request(name, prompt, max_tokens=1))
    outputs, num_computed = run(scheduler, FakeRunner(100))
    assert num_computed == 40 + 5 * 3
    assert all(answer_of(outputs[name]) == expected_answer(prompt, 1) for name, prompt in prompts.items())


def test_nobody_else_waits_for_a_prefix_that_is_being_computed() -> None:
    scheduler, runner = make_scheduler(num_blocks=100, max_num_batched_tokens=16), FakeRunner(100)
    for name in ("leader", "follower"):
        scheduler.add(make_request(name, list(range(60)), max_tokens=1))
    scheduler.add(make_request("other", [900, 901], max_tokens=1))
    scheduler.add(make_request("other salt", list(range(60)), max_tokens=1, cache_salt="x"))
    step = scheduler.schedule()
    assert [request.request_id for request in step.requests] == ["leader", "other", "other salt"]
    scheduler.commit(step.step_id, runner.run(step))


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_a_follower_goes_on_alone_when_its_leader_is_aborted(num_steps: int) -> None:
    scheduler, runner = make_scheduler(num_blocks=100, max_num_batched_tokens=16), FakeRunner(100)
    prompt = list(range(60))
    for name in ("leader", "follower"):
        scheduler.add(make_request(name, prompt, max_tokens=2))
    for _ in range(num_steps):
        step = scheduler.schedule()
        assert [request.request_id for request in step.requests] == ["leader"]
        scheduler.commit(step.step_id, runner.run(step))
    scheduler.abort(["leader"])
    outputs, num_computed = run(scheduler, runner)
    assert answer_of(outputs["follower"]) == expected_answer(prompt, 2)
    assert num_computed == 60 - num_steps * 16 + 1
