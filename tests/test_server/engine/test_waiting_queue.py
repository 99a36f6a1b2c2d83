"""Whose turn it is: priorities, tenants, arrival; and that nobody waits for ever."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_server.engine.request import Request
from forebay_server.engine.scheduler import Scheduler
from forebay_server.engine.waiting_queue import WaitingQueue
from tests.test_server.engine.fake_engine import (
    FakeRunner,
    answer_of,
    expected_answer,
    make_request,
    make_scheduler,
    run_to_end,
)


def fill(queue: WaitingQueue, arrivals: list[tuple[str, int]]) -> None:
    """Queue requests of (tenant, priority), in this order."""
    for number, (tenant, priority) in enumerate(arrivals):
        message = make_request(f"{tenant}{number}", [1], priority=priority, arrival_time=float(number))
        queue.add(Request(message, number, queue.enter(tenant), 100))


def take(queue: WaitingQueue, num_tokens: int = 0) -> str:
    """Take out whose turn it is, and give its tenant tokens."""
    request = next(queue.in_turn())
    queue.remove(request)
    request.tenant.num_tokens += num_tokens
    return request.request_id


def test_without_tenants_it_is_first_come_first_served() -> None:
    queue = WaitingQueue()
    fill(queue, [("", 0)] * 4)
    assert [request.request_id for request in queue.in_turn()] == ["0", "1", "2", "3"]
    assert [take(queue, 100) for _ in range(4)] == ["0", "1", "2", "3"]
    assert len(queue) == 0


def test_the_tenant_with_the_fewest_tokens_is_next_however_many_requests_the_others_have() -> None:
    queue = WaitingQueue()
    fill(queue, [("a", 0)] * 4 + [("b", 0)] * 2)
    assert [take(queue, 10) for _ in range(6)] == ["a0", "b4", "a1", "b5", "a2", "a3"]


def test_turns_are_counted_in_tokens() -> None:
    queue = WaitingQueue()
    fill(queue, [("heavy", 0)] * 2 + [("light", 0)] * 5)
    order = [take(queue, 30 if next(queue.in_turn()).tenant.name == "heavy" else 10) for _ in range(7)]
    assert order == ["heavy0", "light2", "light3", "light4", "heavy1", "light5", "light6"]


def test_a_priority_goes_before_turns() -> None:
    queue = WaitingQueue()
    fill(queue, [("a", 1), ("b", 0), ("b", 0), ("a", 0)])
    assert [take(queue, 10) for _ in range(4)] == ["b1", "a3", "b2", "a0"]


def test_who_stays_in_the_queue_is_skipped_only_once() -> None:
    queue = WaitingQueue()
    fill(queue, [("a", 0), ("b", 0), ("a", 0), ("b", 0)])
    seen = []
    for request in queue.in_turn():
        seen.append(request.request_id)
        if request.request_id in ("a0", "b3"):
            queue.remove(request)
    assert seen == ["a0", "b1", "a2", "b3"]
    assert [request.request_id for request in queue.in_turn()] == ["b1", "a2"]


def test_whoever_was_idle_has_no_claims_from_before() -> None:
    queue = WaitingQueue()
    fill(queue, [("busy", 0)])
    busy = next(queue.in_turn()).tenant
    for _ in range(10):
        busy.num_tokens += 100
        queue.advance(100)
    late = queue.enter("late")
    assert late.num_tokens == busy.num_tokens == 1000


def test_ever_new_tenants_cannot_keep_anyone_waiting_for_ever() -> None:
    queue = WaitingQueue()
    fill(queue, [("patient", 0)])
    patient = next(queue.in_turn()).tenant
    patient.num_tokens = 500.0  # it was served more than others before
    for number in range(1000):
        message = make_request(f"new-{number}", [1], arrival_time=float(number + 1))
        queue.add(Request(message, number + 1, queue.enter(f"tenant-{number}"), 100))
        taken = next(queue.in_turn())
        queue.remove(taken)
        if taken.request_id == "patient0":
            return
        taken.tenant.num_tokens += 10
        queue.advance(10)
        queue.leave(taken.tenant)
    raise AssertionError("it starves")


def test_tenants_without_requests_are_forgotten() -> None:
    scheduler = make_scheduler()
    for index in range(20):
        scheduler.add(make_request(str(index), [index], tenant=f"user-{index}"))
    scheduler.abort(["3"])
    run_to_end(scheduler, FakeRunner(40))
    assert scheduler.num_tenants == 0


def served_order(scheduler: Scheduler, runner: FakeRunner) -> list[str]:
    return list(run_to_end(scheduler, runner))


def test_a_crowd_of_one_tenant_does_not_delay_another() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for index in range(50):
        scheduler.add(make_request(f"crowd-{index}", [index, 1, 2], tenant="crowd", arrival_time=0))
    scheduler.add(make_request("single", [7], tenant="single", arrival_time=1))
    assert served_order(scheduler, FakeRunner(40)).index("single") <= 1


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=40
    ),
    num_blocks=st.integers(12, 40),
)
def test_among_tenants_everyone_is_answered_as_if_alone(requests: list[tuple[str, int, int]], num_blocks: int) -> None:
    scheduler = make_scheduler(num_blocks, max_num_seqs=3)
    for index, (tenant, length, max_tokens) in enumerate(requests):
        prompt = [index * 7 % 900 + position for position in range(length)]
        scheduler.add(make_request(str(index), prompt, max_tokens=max_tokens, tenant=tenant))
    outputs = run_to_end(scheduler, FakeRunner(num_blocks))
    for index, (_, length, max_tokens) in enumerate(requests):
        prompt = [index * 7 % 900 + position for position in range(length)]
        assert answer_of(outputs[str(index)]) == expected_answer(prompt, max_tokens)
