"""The scheduler, case by case, against a runner that computes nothing."""

import pytest

from forebay_server.engine.scheduler import Scheduler
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.messages import RequestOutput
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.fake_engine import (
    BLOCK_SIZE,
    FakeRunner,
    answer_of,
    expected_answer,
    make_request,
    make_scheduler,
    run_to_end,
)


def test_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler, runner = make_scheduler(max_num_batched_tokens=16), FakeRunner(40)
    scheduler.add(make_request("a", list(range(40)), max_tokens=2))
    sizes = []
    while scheduler.has_work:
        step = scheduler.schedule()
        sizes.append(step.num_tokens)
        scheduler.commit(step.step_id, runner.run(step))
    assert sizes == [16, 16, 8, 1]


def test_running_long_prefill_leaves_a_token_to_each_decode() -> None:
    scheduler, runner = make_scheduler(max_num_batched_tokens=16), FakeRunner(40)
    scheduler.add(make_request("short", [1, 2], max_tokens=30, arrival_time=1))
    step = scheduler.schedule()
    scheduler.commit(step.step_id, runner.run(step))
    scheduler.add(make_request("long", list(range(100)), max_tokens=1, arrival_time=0))  # older, so it comes first
    for _ in range(5):
        step = scheduler.schedule()
        sizes = {request.request_id: len(request.token_ids) for request in step.requests}
        assert sizes["short"] == 1
        assert sizes["long"] == 15
        scheduler.commit(step.step_id, runner.run(step))


def test_p5_a_long_prompt_does_not_block_short_ones() -> None:
    """vllm #10774, #33499: a running, and a waiting, long prompt in front of short ones."""
    scheduler, runner = make_scheduler(num_blocks=100, max_num_batched_tokens=16, max_model_len=400), FakeRunner(100)
    for index in range(3):
        scheduler.add(make_request(f"long-{index}", [index] * 100, max_tokens=2))
    for _ in range(2):
        step = scheduler.schedule()
        assert step.num_tokens == 16
        scheduler.commit(step.step_id, runner.run(step))
    for index in range(4):
        scheduler.add(make_request(f"short-{index}", [500 + index, 1], max_tokens=1, arrival_time=1))
    answered: list[str] = []
    for _ in range(2):
        step = scheduler.schedule()
        assert step.num_tokens == 16
        answered += [output.request_id for output in scheduler.commit(step.step_id, runner.run(step))]
    assert answered == [f"short-{index}" for index in range(4)]
    outputs = run_to_end(scheduler, runner)
    assert [answer_of(outputs[f"long-{index}"]) for index in range(3)] == [
        expected_answer([index] * 100, 2) for index in range(3)
    ]


def test_the_cap_of_a_long_prompt_is_set_by_its_threshold_and_wastes_nothing() -> None:
    scheduler, runner = make_scheduler(max_num_batched_tokens=16, long_prefill_token_threshold=6), FakeRunner(40)
    scheduler.add(make_request("long", list(range(60)), max_tokens=1))
    scheduler.add(make_request("other", list(range(500, 560)), max_tokens=1))
    scheduler.add(make_request("short", [900], max_tokens=1))
    sizes = []
    for _ in range(2):
        step = scheduler.schedule()
        sizes.append({request.request_id: len(request.token_ids) for request in step.requests})
        scheduler.commit(step.step_id, runner.run(step))
    assert sizes == [{"long": 9, "other": 6, "short": 1}, {"long": 12, "other": 4}]


def test_p9_last_token_of_a_cached_prompt_is_computed_again() -> None:
    """nano-vllm #144, PR #217, #66: lengths around the borders of blocks, each twice."""
    for length in (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 5 * BLOCK_SIZE + 1):
        scheduler, runner = make_scheduler(), FakeRunner(40)
        prompt = list(range(length))
        cold = make_request("cold", prompt, max_tokens=1)
        scheduler.add(cold)
        cold_outputs = run_to_end(scheduler, runner)["cold"]
        scheduler.add(make_request("hot", prompt, max_tokens=1))
        hot_outputs = run_to_end(scheduler, runner)["hot"]
        assert answer_of(hot_outputs) == answer_of(cold_outputs)
        assert cold_outputs[0].num_cached_tokens == 0
        assert hot_outputs[0].num_cached_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_p8_salts_do_not_share_prefixes() -> None:
    """vllm #44701, #30931, #56655."""
    scheduler, runner = make_scheduler(), FakeRunner(40)
    prompt = list(range(12))
    cached = []
    for index, salt in enumerate(("", "a", "b", "a")):
        scheduler.add(make_request(str(index), prompt, max_tokens=1, cache_salt=salt))
        cached.append(run_to_end(scheduler, runner)[str(index)][0].num_cached_tokens)
    assert cached == [0, 0, 0, 8]


def test_p1_prompt_that_can_never_fit_ends_at_once_and_the_next_one_is_served() -> None:
    """vllm #35541, #39734: also one that fills the pool to the last slot."""
    scheduler, runner = make_scheduler(num_blocks=10, max_model_len=1000), FakeRunner(10)
    scheduler.add(make_request("huge", [1] * (10 * BLOCK_SIZE + 1)))
    scheduler.add(make_request("fits", [1] * (10 * BLOCK_SIZE)))
    outputs = run_to_end(scheduler, runner)
    assert outputs["huge"][0].finish_reason == "error"
    assert "room for 40" in (outputs["huge"][0].error or "")
    assert outputs["fits"][-1].finish_reason == "length"
    assert answer_of(outputs["fits"]) == expected_answer([1] * 40, 1)


def test_p1_answer_that_outgrows_the_pool_ends_with_length() -> None:
    """No livelock: prompt and answer together are larger than the pool."""
    scheduler, runner = make_scheduler(num_blocks=5, max_model_len=1000), FakeRunner(5)
    scheduler.add(make_request("a", [1, 2, 3], max_tokens=500))
    outputs = run_to_end(scheduler, runner)["a"]
    assert outputs[-1].finish_reason == "length"
    assert answer_of(outputs) == expected_answer([1, 2, 3], 5 * BLOCK_SIZE + 1 - 3)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no tokens"),
        ([1] * 200, "max_model_len 200"),
        ([5, 1000], "outside the vocabulary"),
        ([5, -1], "outside the vocabulary"),
    ],
)
def test_impossible_prompt_ends_with_an_error_that_says_why(prompt: list[int], message: str) -> None:
    scheduler = make_scheduler(num_blocks=100)
    scheduler.add(make_request("a", prompt))
    (output,) = run_to_end(scheduler, FakeRunner(100))["a"]
    assert output.finish_reason == "error"
    assert message in (output.error or "")


def test_request_ends_at_max_model_len() -> None:
    scheduler = make_scheduler(max_model_len=20)
    scheduler.add(make_request("a", [3] * 19, max_tokens=100))
    outputs = run_to_end(scheduler, FakeRunner(40))["a"]
    assert answer_of(outputs) == expected_answer([3] * 19, 1)
    assert outputs[-1].finish_reason == "length"


def test_stop_and_end_tokens() -> None:
    answer = expected_answer([1, 2, 3], 10)
    for sampling, num_tokens, reason in (
        (SamplingParams(max_tokens=10, temperature=0, eos_token_ids=(answer[3],)), 4, "stop"),
        (SamplingParams(max_tokens=10, temperature=0, stop_token_ids=(answer[2],)), 3, "stop"),
        (SamplingParams(max_tokens=10, temperature=0, eos_token_ids=(answer[3],), ignore_eos=True), 10, "length"),
        (SamplingParams(max_tokens=4, temperature=0, eos_token_ids=(answer[3],)), 4, "stop"),
        (SamplingParams(max_tokens=10, temperature=0, eos_token_ids=(answer[3],), min_tokens=3), 4, "stop"),
        (SamplingParams(max_tokens=10, temperature=0, eos_token_ids=(answer[3],), min_tokens=4), 10, "length"),
    ):
        scheduler = make_scheduler()
        scheduler.add(make_request("a", [1, 2, 3], sampling=sampling))
        outputs = run_to_end(scheduler, FakeRunner(40))["a"]
        assert answer_of(outputs) == answer[:num_tokens]
        assert outputs[-1].finish_reason == reason
        assert outputs[-1].stop_token_id == (answer[num_tokens - 1] if reason == "stop" else None)


def test_p3_preempted_requests_answer_as_if_alone() -> None:
    """vllm #16832: nothing repeated, nothing lost."""
    scheduler, runner = make_scheduler(num_blocks=12, max_num_batched_tokens=32), FakeRunner(12)
    prompts = {str(index): [index] * 9 for index in range(6)}
    for name, prompt in prompts.items():
        scheduler.add(make_request(name, prompt, max_tokens=25))
    outputs = run_to_end(scheduler, runner)
    assert scheduler.take_counters().new_preemptions > 0
    for name, prompt in prompts.items():
        assert answer_of(outputs[name]) == expected_answer(prompt, 25)


def test_request_is_not_admitted_into_blocks_that_its_own_prefix_needs() -> None:
    scheduler, runner = make_scheduler(num_blocks=10, max_num_batched_tokens=64), FakeRunner(10)
    scheduler.add(make_request("first", list(range(20)), max_tokens=1))
    run_to_end(scheduler, runner)  # its 5 blocks stay cached
    scheduler.add(make_request("beside", [900] * 17, max_tokens=3))
    scheduler.add(make_request("after", list(range(28)), max_tokens=1, arrival_time=1))
    step = scheduler.schedule()
    assert [request.request_id for request in step.requests] == ["beside"]
    scheduler.commit(step.step_id, runner.run(step))
    outputs = run_to_end(scheduler, runner)
    assert scheduler.take_counters().new_preemptions == 0
    assert answer_of(outputs["after"]) == expected_answer(list(range(28)), 1)


def test_p10_blocks_computed_again_after_preemption_are_found_by_others() -> None:
    scheduler, runner = make_scheduler(num_blocks=8, max_num_batched_tokens=32), FakeRunner(8)
    scheduler.add(make_request("old", [1] * 8, max_tokens=24))
    scheduler.add(make_request("young", [2] * 8, max_tokens=12, arrival_time=1))
    run_to_end(scheduler, runner)
    assert scheduler.take_counters().new_preemptions > 0
    scheduler.add(make_request("same", [2] * 9, max_tokens=1))
    assert run_to_end(scheduler, runner)["same"][0].num_cached_tokens == 8


def test_p4_more_important_request_is_admitted_first() -> None:
    """vllm #9342, #24365."""
    scheduler, runner = make_scheduler(num_blocks=10, max_num_seqs=1), FakeRunner(10)
    scheduler.add(make_request("late", [1, 2], priority=5, arrival_time=0))
    scheduler.add(make_request("soon", [1, 2], priority=-1, arrival_time=9))
    scheduler.add(make_request("middle", [1, 2], priority=0, arrival_time=5))
    order = list(run_to_end(scheduler, runner))
    assert order == ["soon", "middle", "late"]


def test_p6_abort_between_schedule_and_commit_frees_blocks_only_at_commit() -> None:
    """vllm #37076: the step in flight still writes to them."""
    scheduler, runner = make_scheduler(), FakeRunner(40)
    scheduler.add(make_request("a", list(range(10))))
    step = scheduler.schedule()
    scheduler.abort(["a", "never heard of"])
    assert scheduler.pool.num_held == 3
    (output,) = scheduler.commit(step.step_id, runner.run(step))
    assert output.finish_reason == "abort"
    assert output.token_ids == []
    assert scheduler.pool.num_held == 0
    assert not scheduler.has_work


def test_abort_of_a_waiting_request() -> None:
    scheduler, runner = make_scheduler(max_num_seqs=1), FakeRunner(40)
    scheduler.add(make_request("a", [1], max_tokens=3))
    scheduler.add(make_request("b", [1], max_tokens=3))
    scheduler.abort(["b"])
    outputs = run_to_end(scheduler, runner)
    assert outputs["b"][-1].finish_reason == "abort"
    assert answer_of(outputs["a"]) == expected_answer([1], 3)


def test_error_of_one_row_ends_only_its_request() -> None:
    scheduler, runner = make_scheduler(), FakeRunner(40)
    scheduler.add(make_request("bad", [1, 2], max_tokens=3))
    scheduler.add(make_request("good", [3, 4], max_tokens=3))
    step = scheduler.schedule()
    outputs = scheduler.commit(step.step_id, runner.run(step) | {"bad": SampledToken(error="no finite logits")})
    assert {output.request_id: output.finish_reason for output in outputs} == {"bad": "error", "good": None}
    assert answer_of(outputs[1:] + run_to_end(scheduler, runner)["good"]) == expected_answer([3, 4], 3)


def test_request_waits_while_its_token_is_being_sampled() -> None:
    scheduler, runner = make_scheduler(), FakeRunner(40)
    scheduler.add(make_request("a", [1, 2]))
    first = scheduler.schedule()
    second = scheduler.schedule()
    assert first.num_tokens == 2
    assert second.num_tokens == 0
    scheduler.commit(first.step_id, runner.run(first))
    with pytest.raises(ValueError, match="not the oldest"):
        scheduler.commit(first.step_id, {})
    scheduler.commit(second.step_id, {})


def test_id_that_is_in_use_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1]))
    with pytest.raises(ValueError, match="in use"):
        scheduler.add(make_request("a", [2]))


def test_counters_count_each_request_once() -> None:
    scheduler, runner = make_scheduler(num_blocks=12, max_num_batched_tokens=32), FakeRunner(12)
    for index in range(6):
        scheduler.add(make_request(str(index), [index] * 9, max_tokens=25))
    run_to_end(scheduler, runner)
    counters = scheduler.take_counters()
    assert counters.new_prompt_tokens == counters.new_prefix_cache_queries == 6 * 9
    assert counters.new_generation_tokens == 6 * 25
    assert scheduler.take_counters().new_generation_tokens == 0


def can_only_wait(scheduler: Scheduler) -> bool:
    return scheduler.is_only_holding


def test_a_held_request_holds_up_nobody_and_keeps_its_place() -> None:
    scheduler, runner = make_scheduler(max_num_seqs=1), FakeRunner(40)
    scheduler.add(make_request("held", [1, 2], max_tokens=2, arrival_time=0), held=True)
    assert can_only_wait(scheduler)
    scheduler.add(make_request("first", [3], max_tokens=2, arrival_time=1))
    scheduler.add(make_request("last", [4], max_tokens=2, arrival_time=2))
    assert not can_only_wait(scheduler)
    assert scheduler.num_waiting == 3
    step = scheduler.schedule()
    assert [request.request_id for request in step.requests] == ["first"]
    scheduler.commit(step.step_id, runner.run(step))
    scheduler.unhold("held")
    outputs = run_to_end(scheduler, runner)
    assert list(outputs) == ["first", "held", "last"]
    assert answer_of(outputs["held"]) == expected_answer([1, 2], 2)


def test_held_requests_can_fail_and_be_aborted() -> None:
    scheduler = make_scheduler()
    for name in ("bad", "left"):
        scheduler.add(make_request(name, [1]), held=True)
    scheduler.fail("bad", "the grammar is wrong")
    scheduler.abort(["left"])
    scheduler.unhold("bad")
    scheduler.fail("left", "too late")
    outputs = run_to_end(scheduler, FakeRunner(40))
    assert [(name, told[0].finish_reason) for name, told in outputs.items()] == [("bad", "error"), ("left", "abort")]
    assert outputs["bad"][0].error == "the grammar is wrong"
    assert scheduler.num_waiting == 0


def test_p4_the_least_important_request_is_preempted_first() -> None:
    scheduler, runner = make_scheduler(num_blocks=12, max_num_batched_tokens=32), FakeRunner(12)
    for index, priority in enumerate((5, 0, -5)):  # the important one comes last
        scheduler.add(
            make_request(f"priority {priority}", [index] * 9, max_tokens=25, priority=priority, arrival_time=index)
        )
    ends: list[str] = []
    while scheduler.has_work:
        step = scheduler.schedule()
        for output in scheduler.commit(step.step_id, runner.run(step)):
            if output.finish_reason is not None:
                ends.append(output.request_id)
    assert scheduler.take_counters().new_preemptions > 0
    assert ends == ["priority -5", "priority 0", "priority 5"]


@pytest.mark.parametrize("lag", [0, 1])
def test_p6_blocks_of_aborted_requests_serve_the_next_ones_well(lag: int) -> None:
    """Many rounds of abort and a new request at once, with a step in flight or not."""
    scheduler, runner = make_scheduler(num_blocks=6, max_num_batched_tokens=32), FakeRunner(6)
    in_flight: list[SchedulerOutput] = []
    answers: dict[str, list[int]] = {}

    def step() -> None:
        in_flight.append(scheduler.schedule())
        while len(in_flight) > lag:
            done = in_flight.pop(0)
            for output in scheduler.commit(done.step_id, runner.run(done)):
                answers.setdefault(output.request_id, []).extend(output.token_ids)

    for number in range(40):
        scheduler.add(make_request(f"left-{number}", [number] * 9, max_tokens=12))
        step()
        step()
        scheduler.abort([f"left-{number}"])
        scheduler.add(make_request(f"kept-{number}", [500 + number] * 9, max_tokens=6))
        while f"kept-{number}" not in answers or len(answers[f"kept-{number}"]) < 6:
            step()
        assert answers[f"kept-{number}"] == expected_answer([500 + number] * 9, 6)
    while scheduler.has_work or in_flight:
        step()
        if not scheduler.has_work:
            break
    for done in in_flight:
        scheduler.commit(done.step_id, runner.run(done))
    assert scheduler.pool.num_held == 0


@pytest.mark.parametrize("lag", [0, 1])
def test_p13_chunks_race_with_prefixes_that_are_being_cached(lag: int) -> None:
    """sglang #38319, #8726: small chunks, a shared beginning, arrivals while it is computed."""
    scheduler, runner = make_scheduler(num_blocks=100, max_num_batched_tokens=8), FakeRunner(100)
    prompts = {str(index): [*range(33), 900 + index] for index in range(6)}
    in_flight: list[SchedulerOutput] = []
    answers: dict[str, list[int]] = {}
    waiting = list(prompts.items())
    while waiting or scheduler.has_work:
        if waiting:
            name, prompt = waiting.pop(0)
            scheduler.add(make_request(name, prompt, max_tokens=4))
        in_flight.append(scheduler.schedule())
        while len(in_flight) > (lag if scheduler.has_work else 0):
            done = in_flight.pop(0)
            for output in scheduler.commit(done.step_id, runner.run(done)):
                answers.setdefault(output.request_id, []).extend(output.token_ids)
    assert answers == {name: expected_answer(prompt, 4) for name, prompt in prompts.items()}


@pytest.mark.parametrize("length", [17, 18, 19])
def test_p19_near_the_end_of_the_context_with_a_step_in_flight(length: int) -> None:
    """vllm #38624, #46899, #49620: no placeholder is computed or given out, and nothing runs over."""
    scheduler, runner = make_scheduler(max_model_len=20), FakeRunner(40)
    scheduler.add(make_request("a", [3] * length, max_tokens=100))
    in_flight: list[SchedulerOutput] = []
    told: list[RequestOutput] = []
    while scheduler.has_work:
        in_flight.append(scheduler.schedule())
        assert all(token_id >= 0 for request in in_flight[-1].requests for token_id in request.token_ids)
        assert all(request.context_len + len(request.token_ids) < 20 for request in in_flight[-1].requests)
        if len(in_flight) > 1:
            done = in_flight.pop(0)
            told += scheduler.commit(done.step_id, runner.run(done))
    assert answer_of(told) == expected_answer([3] * length, 20 - length)
    assert told[-1].finish_reason == "length"
