"""Who may come in: a bound on choices waiting and running, decided before anything is computed for a request."""

import math
import time

from forebay_server.errors import InvalidRequestError, OverloadedError, UnavailableError
from forebay_server.ops.shared_state import SharedState

DRAIN_RETRY_SECONDS = 5
_MAX_RETRY_SECONDS = 60


class Admission:
    """Counts choices from admission to their end; every choice of a request counts.

    Args:
        max_choices: more at a time get 429.
        state: where the count is published.
    """

    def __init__(self, max_choices: int, state: SharedState) -> None:
        self._max_choices = max_choices
        self._state = state
        self._num_in_flight = 0
        self._seconds_per_choice = 0.1  # smoothed time between two ends, while busy
        self._last_end = time.monotonic()

    @property
    def num_in_flight(self) -> int:
        """Choices admitted and not ended."""
        return self._num_in_flight

    def admit(self, num_choices: int) -> None:
        """Take places for all choices of a request, or for none.

        Raises:
            InvalidRequestError: the request alone is more than there is room for at any time.
            OverloadedError: too many are there; the client is told when to come back.
            UnavailableError: the server is draining.
        """
        if self._state.get("is_draining"):
            raise draining_error()
        if num_choices > self._max_choices:
            raise InvalidRequestError(
                f"n times the number of prompts is {num_choices}; this server takes {self._max_choices} at a time",
                param="n",
            )
        if self._num_in_flight + num_choices > self._max_choices:
            wait = math.ceil(min(_MAX_RETRY_SECONDS, max(1.0, self._seconds_per_choice * self._num_in_flight / 2)))
            raise OverloadedError(
                f"the server is busy: {self._num_in_flight} requests wait or run, the limit is {self._max_choices}",
                code="queue_full",
                retry_after_seconds=wait,
            )
        self._num_in_flight += num_choices
        self._state.put("num_in_flight", self._num_in_flight)

    def release(self, num_choices: int) -> None:
        """Give back places of choices that ended."""
        if num_choices == 0:
            return
        now = time.monotonic()
        self._seconds_per_choice += 0.1 * (min(now - self._last_end, 10.0) / num_choices - self._seconds_per_choice)
        self._last_end = now
        self._num_in_flight -= num_choices
        self._state.put("num_in_flight", self._num_in_flight)


def draining_error() -> UnavailableError:
    """What new requests are told while the server ends."""
    return UnavailableError(
        "the server is shutting down and takes no new requests",
        code="draining",
        retry_after_seconds=DRAIN_RETRY_SECONDS,
    )
