"""The JSON bodies of `/startupz` and `/load`; the operator reads these names."""

import threading
import time
from collections import deque
from typing import get_args

from forebay_server.messages import ComputedBy
from forebay_server.metrics import num_waiting
from forebay_server.ops.probes import phase_name
from forebay_server.ops.shared_state import SharedState, StateSnapshot

_WINDOW_SECONDS = 10.0


class TokenRate:
    """Generated tokens a second over the last ten seconds, from samples of the counter."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._samples: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self.sample()

    def sample(self) -> None:
        """Remember the counter; call it about every second."""
        now = time.monotonic()
        with self._lock:
            self._samples.append((now, self._state.get("num_generation_tokens")))
            while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW_SECONDS:
                self._samples.popleft()

    def tokens_per_second(self) -> float:
        """The rate; 0 before the first second."""
        with self._lock:
            start, count = self._samples[0]
        seconds = time.monotonic() - start
        return (self._state.get("num_generation_tokens") - count) / seconds if seconds >= 0.5 else 0.0


def load_report(now: StateSnapshot, tokens_per_second: float) -> dict[str, object]:
    """How busy the server is."""
    return {
        "running": int(now.num_running),
        "waiting": int(num_waiting(now)),
        "kvUsage": round(now.kv_used_blocks / now.kv_total_blocks, 4) if now.kv_total_blocks else 0.0,
        "kvCapacityTokens": int(now.kv_cache_tokens),
        "tokensPerSecond": round(tokens_per_second, 1),
        "stepCount": int(now.step_count),
        "phase": phase_name(now),
        "ready": bool(now.is_ready) and not now.is_draining,
    }


def startup_report(now: StateSnapshot, monotonic_time: float, plan: dict[str, object] | None) -> dict[str, object]:
    """How far the start is; once it is done, what was measured beside what was planned."""
    report: dict[str, object] = {
        "phase": phase_name(now),
        "bytesDone": int(now.bytes_done),
        "bytesTotal": int(now.bytes_total),
        "secondsSinceProgress": round(monotonic_time - now.last_progress, 1),
        "secondsInPhase": round(monotonic_time - now.phase_since, 1),
    }
    if now.computed_by:
        report["computedBy"] = get_args(ComputedBy)[int(now.computed_by) - 1]
    if plan is not None:
        report["planned"] = plan
    if now.num_blocks:
        measured = {
            "weightBytes": int(now.weight_bytes),
            "kvCacheTokens": int(now.kv_cache_tokens),
            "kvBytesPerToken": int(now.kv_bytes_per_token),
            "kvCacheBytes": int(now.kv_cache_tokens * now.kv_bytes_per_token),
            "freeBytes": int(now.free_bytes),
            "maxModelLen": int(now.max_model_len),
            "blockSize": int(now.block_size),
        }
        if now.activation_peak_bytes:
            measured["activationPeakBytes"] = int(now.activation_peak_bytes)
        report["measured"] = measured
    return report
