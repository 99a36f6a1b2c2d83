"""Is the server alive, is it ready: pure decisions over a snapshot of the shared numbers."""

from dataclasses import dataclass

from forebay_server.ops.shared_state import Phase, StateSnapshot

API_HEARTBEAT_SECONDS = 1.0
"""How often the API's event loop says that it runs."""
MOST_PATIENCE = 10
"""An engine that waits for a CPU is given at most so many times the hang timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long nothing may happen, in seconds."""

    hang_timeout: float
    load_stall_timeout: float
    compile_timeout: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a probe; the reason is a stable CamelCase word, the message is for people."""

    ok: bool
    reason: str
    message: str


def has_work(now: StateSnapshot) -> bool:
    """Whether the engine serves and has something to compute."""
    return now.phase == Phase.SERVING and now.num_in_engine > 0


def stalled_since(now: StateSnapshot) -> float:
    """When the present step began, about: the last one ended, or work came."""
    return max(now.last_step, now.in_engine_since)


def engine_is_hung(now: StateSnapshot, time: float, hang_timeout: float) -> bool:
    """Whether the engine has work and no step has ended for `hang_timeout` seconds in which it could compute.

    While it waits for a CPU that others have, its clock stands: a restart would not help. Not for ever, though.
    """
    stalled = time - stalled_since(now)
    starved = min(now.step_cpu_wait, (MOST_PATIENCE - 1) * hang_timeout)
    return has_work(now) and stalled - starved > hang_timeout


def liveness(now: StateSnapshot, time: float, limits: Limits) -> Verdict:
    """Whether a restart would help.

    Args:
        now: the shared numbers.
        time: CLOCK_MONOTONIC seconds.
        limits: how long nothing may happen.
    """
    silent = time - max(now.api_heartbeat, now.api_started)
    if silent > limits.hang_timeout + API_HEARTBEAT_SECONDS:
        return Verdict(False, "ApiHung", f"the API process has not moved for {silent:.0f} s")
    if engine_is_hung(now, time, limits.hang_timeout):
        stalled = time - stalled_since(now)
        starved = f", {now.step_cpu_wait:.0f} s of it for want of a CPU" if now.step_cpu_wait >= 1 else ""
        return Verdict(
            False,
            "EngineHung",
            f"{now.num_in_engine:.0f} requests are in the engine and no step has ended for {stalled:.0f} s{starved}",
        )
    since_progress = time - now.last_progress
    if now.phase == Phase.COMPILING and since_progress > limits.compile_timeout:
        return Verdict(False, "CompilingStalled", f"compiling for {since_progress:.0f} s")
    if now.phase < Phase.SERVING and now.phase != Phase.COMPILING and since_progress > limits.load_stall_timeout:
        name = phase_name(now)
        return Verdict(False, "LoadingStalled", f"{name}: no progress for {since_progress:.0f} s ({_progress(now)})")
    return Verdict(True, "Alive", f"{phase_name(now)}, {now.step_count:.0f} steps")


def readiness(now: StateSnapshot, time: float, limits: Limits) -> Verdict:
    """Whether new requests should be sent here."""
    if now.is_draining:
        return Verdict(False, "Draining", f"{now.num_in_flight:.0f} requests still run; no new ones are taken")
    if not now.is_ready:
        return Verdict(False, phase_name(now).capitalize(), f"{phase_name(now)} ({_progress(now)})")
    alive = liveness(now, time, limits)
    return Verdict(True, "Ready", "serving") if alive.ok else alive


def phase_name(now: StateSnapshot) -> str:
    """The phase as the contract writes it; `draining` is the API's word, the others are the engine's."""
    return "draining" if now.is_draining else Phase(int(now.phase)).name.lower()


def _progress(now: StateSnapshot) -> str:
    return f"{now.bytes_done / 1e6:.0f} of {now.bytes_total / 1e6:.0f} MB" if now.bytes_total else "no bytes yet"
