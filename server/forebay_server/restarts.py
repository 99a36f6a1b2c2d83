"""When an engine that ended is started again: how often, and after how long. No processes, no clock."""

from collections import deque

WINDOW_SECONDS = 600.0
"""Ends that are longer ago than this are forgotten."""
_FIRST_DELAY_SECONDS = 0.25
_LONGEST_DELAY_SECONDS = 30.0


class RestartPolicy:
    """Bounded, with growing delays: trouble that does not pass is for Kubernetes to see.

    Args:
        max_restarts: within `WINDOW_SECONDS`; 0: never.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._ends: deque[float] = deque()

    def delay_after_end(self, now: float) -> float | None:
        """What to do about an engine that ended now.

        Args:
            now: CLOCK_MONOTONIC seconds.

        Returns:
            Seconds to wait before it is started again; None: not again.
        """
        while self._ends and now - self._ends[0] > WINDOW_SECONDS:
            self._ends.popleft()
        self._ends.append(now)
        if len(self._ends) > self._max_restarts:
            return None
        doublings: int = 1 << (len(self._ends) - 1)
        return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * doublings)
