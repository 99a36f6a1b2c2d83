"""The autoscaler against the faults that were reported of others; each test names the report."""

from datetime import UTC, datetime, timedelta

import pytest

from forebay_operator.api.inference_service import Scaling, ScalingTarget
from forebay_operator.autoscale import Decision, History, ReplicaState, Sample, decide

START = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = Scaling(
    min_replicas=1,
    max_replicas=16,
    target=ScalingTarget(waiting_per_replica=4, utilization_percent=70),
    scale_down_delay="5m",
)


def pod(
    name: str,
    state: ReplicaState = "serving",
    *,
    waiting: int | None = 0,
    running: int | None = 0,
    age: float = 100,
    current: bool = True,
) -> Sample:
    return Sample(pod=name, state=state, age_seconds=age, waiting=waiting, running=running, current_revision=current)


class Clockwork:
    """Decides every ten seconds and follows each decision, as the operator does."""

    def __init__(self, replicas: int, spec: Scaling = SPEC, capacity: int = 8) -> None:
        self.replicas, self.spec, self.capacity = replicas, spec, capacity
        self.now = START
        self.history = History()
        self.last_scale: datetime | None = None
        self.changes: list[int] = []

    def tick(self, samples: list[Sample]) -> Decision:
        self.now += timedelta(seconds=10)
        made = decide(
            samples,
            self.spec,
            current=self.replicas,
            capacity=self.capacity,
            now=self.now,
            history=self.history,
            last_scale=self.last_scale,
        )
        self.history = made.history
        if made.desired != self.replicas:
            self.replicas, self.last_scale = made.desired, self.now
            self.changes.append(made.desired)
        return made


def test_report_1_no_cascade_while_replicas_load_aibrix_2670_kubernetes_59975() -> None:
    clockwork = Clockwork(2)
    busy = [pod("a", waiting=20, running=8), pod("b", waiting=20, running=8)]
    clockwork.tick(busy)
    assert clockwork.replicas == 4
    loading = [pod("c", "loading", waiting=None, running=None), pod("d", "loading", waiting=None, running=None)]
    for _ in range(12):  # two minutes of loading
        assert clockwork.tick([*busy, *loading]).reason == "WaitingForLoading"
    assert clockwork.changes == [4]


def test_report_1_a_pod_past_its_deadline_is_no_supply_any_more() -> None:
    clockwork = Clockwork(3)
    stuck = pod("c", "loading", waiting=None, running=None, age=7200)
    clockwork.tick([pod("a", waiting=20), pod("b", waiting=20), stuck])
    assert clockwork.replicas > 3


def test_report_2_no_flapping_on_queue_noise_wva_1352_keda_4249() -> None:
    clockwork = Clockwork(10)
    for step in range(60):  # ten minutes, five percent around the threshold of 4 a replica
        waiting = 42 if step % 2 else 38
        clockwork.tick([pod(str(n), waiting=waiting if n == 0 else 0, running=4) for n in range(clockwork.replicas)])
    assert len(clockwork.changes) <= 1


@pytest.mark.parametrize("share", [0.95, 1.05])
def test_report_2_inside_the_dead_band_nothing_moves(share: float) -> None:
    clockwork = Clockwork(10)
    for _ in range(60):
        clockwork.tick([pod(str(n), waiting=round(40 * share) if n == 0 else 0, running=4) for n in range(10)])
    assert clockwork.changes == []


def test_report_3_scales_down_after_the_load_is_gone_even_over_a_restart_aibrix_593_kubeai_383() -> None:
    clockwork = Clockwork(4)
    clockwork.tick([pod(str(n), waiting=4, running=8) for n in range(4)])
    clockwork.history = History()  # the operator restarts, and no request ever comes again
    for _ in range(90):  # fifteen minutes
        clockwork.tick([pod(str(n)) for n in range(clockwork.replicas)])
    assert clockwork.changes == [3, 2, 1]


def test_report_3_not_before_the_delay_and_one_at_a_time() -> None:
    clockwork = Clockwork(4)
    for _ in range(30):  # 300 s: the first look is the beginning of the observation
        clockwork.tick([pod(str(n)) for n in range(4)])
    assert clockwork.changes == []
    clockwork.tick([pod(str(n)) for n in range(4)])
    assert clockwork.changes == [3]
    clockwork.tick([pod(str(n)) for n in range(3)])
    assert clockwork.changes == [3]


def test_report_3_a_peak_within_the_delay_holds_what_it_needed() -> None:
    clockwork = Clockwork(3)
    for step in range(60):
        peak = step == 20
        clockwork.tick([pod(str(n), running=5 if peak else 0) for n in range(3)])
        if step < 50:
            assert clockwork.replicas == 3
    assert clockwork.replicas < 3


def test_report_5_one_blind_pod_never_scales_down_keda_3065_aibrix_617() -> None:
    clockwork = Clockwork(4)
    for _ in range(120):
        made = clockwork.tick([pod(str(n)) for n in range(3)] + [pod("blind", waiting=None, running=None)])
    assert clockwork.changes == []
    assert made.reason == "PartialMetrics"


def test_report_5_partial_data_may_scale_up() -> None:
    clockwork = Clockwork(4)
    clockwork.tick([pod(str(n), waiting=20) for n in range(3)] + [pod("blind", waiting=None, running=None)])
    assert clockwork.replicas == 8


def test_report_5_all_blind_holds_says_so_and_recovers() -> None:
    clockwork = Clockwork(4)
    blind = [pod(str(n), waiting=None, running=None) for n in range(4)]
    for _ in range(60):
        made = clockwork.tick(blind)
        assert (made.desired, made.blind, made.reason) == (4, True, "MetricsUnavailable")
    made = clockwork.tick([pod(str(n), waiting=20) for n in range(4)])
    assert not made.blind
    assert clockwork.replicas == 8


def test_bounds_hold_without_any_traffic_kubeai_193() -> None:
    spec = Scaling(min_replicas=3, max_replicas=5)
    assert decide([], spec, current=1, capacity=8, now=START, history=History()).desired == 3
    assert decide([], spec, current=9, capacity=8, now=START, history=History()).desired == 5


def test_at_the_maximum_it_says_so() -> None:
    clockwork = Clockwork(2, Scaling(min_replicas=1, max_replicas=2))
    assert clockwork.tick([pod("a", waiting=50), pod("b", waiting=50)]).reason == "AtMaximum"
    assert clockwork.changes == []


def test_the_same_inputs_give_the_same_decision_wva_380() -> None:
    samples = [pod("a", waiting=9), pod("b", waiting=9)]
    first, second = (decide(samples, SPEC, current=2, capacity=8, now=START, history=History()) for _ in range(2))
    assert first == second


def test_running_requests_keep_replicas() -> None:
    clockwork = Clockwork(4, capacity=8)
    for _ in range(60):  # 22 running requests need 22 / (8 x 70 %) = 3.9 replicas
        clockwork.tick([pod(str(n), running=6 if n < 3 else 4) for n in range(4)])
    assert clockwork.changes == []


def test_the_emptiest_pod_is_the_victim() -> None:
    clockwork = Clockwork(3)
    for _ in range(31):
        made = clockwork.tick([pod("busy", running=2), pod("empty"), pod("other", running=1)])
    assert made.victim == "empty"


def test_no_removal_while_pods_of_two_revisions_run() -> None:
    clockwork = Clockwork(3)
    for _ in range(60):
        made = clockwork.tick([pod("a"), pod("b"), pod("c", current=False)])
    assert made.reason == "WaitingForPods"
    assert clockwork.changes == []


def test_failed_pods_do_not_stop_the_others_from_scaling_up() -> None:
    clockwork = Clockwork(2)
    clockwork.tick([pod("a", waiting=30), pod("b", "failed", waiting=None, running=None)])
    assert clockwork.replicas > 2


def test_the_memory_does_not_grow_with_time() -> None:
    clockwork = Clockwork(4, Scaling(min_replicas=1, max_replicas=8, scale_down_delay="100h"))
    for step in range(5000):
        clockwork.tick([pod(str(n), running=step % 7) for n in range(4)])
    assert len(clockwork.history.needs) <= 8
