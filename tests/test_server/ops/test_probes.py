"""Alive and ready, by table: pure decisions over the shared numbers."""

from typing import Any

import pytest

from forebay_server.ops.probes import Limits, liveness, phase_name, readiness
from forebay_server.ops.shared_state import Phase, StateSnapshot

LIMITS = Limits(hang_timeout=60, load_stall_timeout=300, compile_timeout=1800)
NOW = 10_000.0
SERVING: dict[str, Any] = {"phase": Phase.SERVING, "is_ready": 1, "api_heartbeat": NOW, "last_step": NOW}


def snapshot(**fields: Any) -> StateSnapshot:
    return StateSnapshot(**{"api_heartbeat": NOW, "last_progress": NOW, **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (SERVING, "Alive"),
        ({**SERVING, "last_step": NOW - 3600}, "Alive"),
        ({**SERVING, "last_step": NOW - 61, "in_engine_since": NOW - 61, "num_in_engine": 1}, "EngineHung"),
        ({**SERVING, "last_step": NOW - 59, "in_engine_since": NOW - 900, "num_in_engine": 1}, "Alive"),
        ({**SERVING, "last_step": NOW - 3600, "in_engine_since": NOW - 1, "num_in_engine": 1}, "Alive"),
        ({**SERVING, "api_heartbeat": NOW - 62}, "ApiHung"),
        ({"api_heartbeat": 0, "api_started": NOW - 5, "phase": Phase.LOADING}, "Alive"),
        ({"phase": Phase.LOADING, "last_progress": NOW - 299}, "Alive"),
        ({"phase": Phase.LOADING, "last_progress": NOW - 301}, "LoadingStalled"),
        ({"phase": Phase.DOWNLOADING, "last_progress": NOW - 301}, "LoadingStalled"),
        ({"phase": Phase.WARMING, "last_progress": NOW - 301}, "LoadingStalled"),
        ({"phase": Phase.COMPILING, "last_progress": NOW - 1799}, "Alive"),
        ({"phase": Phase.COMPILING, "last_progress": NOW - 1801}, "CompilingStalled"),
    ],
)
def test_liveness(fields: dict[str, Any], reason: str) -> None:
    verdict = liveness(snapshot(**fields), NOW, LIMITS)
    assert verdict.reason == reason
    assert verdict.ok == (reason == "Alive")
    assert verdict.message


@pytest.mark.parametrize(
    ("stalled", "waited", "hung"),
    [
        (61, 0, True),
        (61, 0.5, True),
        (61, 2, False),
        (300, 239, True),
        (300, 241, False),
        (599, 599, False),
        (601, 601, True),
    ],
)
def test_an_engine_that_waits_for_a_cpu_is_not_hung_for_ten_times_as_long(
    stalled: float, waited: float, hung: bool
) -> None:
    step = {**SERVING, "last_step": NOW - stalled, "num_in_engine": 1, "step_cpu_wait": waited}
    verdict = liveness(snapshot(**step), NOW, LIMITS)
    assert verdict.reason == ("EngineHung" if hung else "Alive")
    assert ("for want of a CPU" in verdict.message) == (hung and waited >= 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (SERVING, "Ready"),
        ({**SERVING, "is_ready": 0}, "Serving"),
        ({**SERVING, "is_draining": 1}, "Draining"),
        ({"phase": Phase.LOADING}, "Loading"),
        ({**SERVING, "last_step": NOW - 61, "in_engine_since": NOW - 61, "num_in_engine": 1}, "EngineHung"),
    ],
)
def test_readiness(fields: dict[str, Any], reason: str) -> None:
    verdict = readiness(snapshot(**fields), NOW, LIMITS)
    assert verdict.reason == reason
    assert verdict.ok == (reason == "Ready")


def test_phases_are_named_as_in_the_contract() -> None:
    names = [phase_name(snapshot(phase=phase)) for phase in Phase]
    assert names == ["downloading", "loading", "compiling", "warming", "serving"]
    assert phase_name(snapshot(phase=Phase.SERVING, is_draining=1)) == "draining"
