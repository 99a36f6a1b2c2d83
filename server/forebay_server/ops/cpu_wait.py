"""How long the engine waited for a CPU while a step ran: what tells one that is starved from one that hangs.

Linux counts it for every thread: the second number of `/proc/PID/task/TID/schedstat`, in nanoseconds (the kernel's
"Scheduler Statistics"). A thread that is stopped, sleeps or spins does not wait. Where the numbers are missing, nobody
ever waited, and only the clock decides.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from forebay_server.ops.probes import has_work, stalled_since
from forebay_server.ops.shared_state import SharedState

_PROC = Path("/proc")
_ATTENTION = 0.1
"""Of the hang timeout: steps that take less long are not looked at."""


class StepWatch:
    """Publishes `step_cpu_wait` of steps that take long.

    Args:
        state: shared with the engine.
        hang_timeout: seconds.
        proc: where the kernel tells about processes.
    """

    def __init__(self, state: SharedState, hang_timeout: float, proc: Path = _PROC) -> None:
        self._state = state
        self._attention = _ATTENTION * hang_timeout
        self._proc = proc
        self._step = 0.0
        """When the step that is watched began; 0: none is."""
        self._waits_before: dict[int, float] = {}

    def look(self, time: float) -> None:
        """See how the present step fares. Reads a few small files when it takes long, and nothing else.

        Args:
            time: CLOCK_MONOTONIC seconds.
        """
        now = self._state.snapshot()
        step = stalled_since(now)
        if not has_work(now) or time - step < self._attention:
            self._step = 0.0
            self._state.put("step_cpu_wait", 0)
            return
        waits = waits_by_thread(int(now.engine_pid), self._proc)
        if step != self._step:
            self._step, self._waits_before = step, waits
        self._state.put("step_cpu_wait", longest_wait(self._waits_before, waits))


def waits_by_thread(pid: int, proc: Path = _PROC) -> dict[int, float]:
    """Seconds that each thread of a process and of its children (the ranks) has waited for a CPU, by thread id."""
    waits: dict[int, float] = {}
    for process in (pid, *_children(pid, proc)):
        for thread, text in _of_threads(process, "schedstat", proc):
            waits[thread] = int(text.split()[1]) / 1e9
    return waits


def longest_wait(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """How long the thread that waited longest did so between two looks, in seconds; a step waits for its slowest."""
    return max((after[thread] - before[thread] for thread in before.keys() & after.keys()), default=0.0)


def _children(pid: int, proc: Path) -> list[int]:
    return [int(child) for _, text in _of_threads(pid, "children", proc) for child in text.split()]


def _of_threads(pid: int, file: str, proc: Path) -> Iterator[tuple[int, str]]:
    """What a file says about each thread; a thread that has just ended, or a kernel that does not tell, is left out."""
    with contextlib.suppress(OSError):
        for folder in (proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                yield int(folder.name), (folder / file).read_text()
