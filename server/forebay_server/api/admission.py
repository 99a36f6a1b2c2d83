"""Who may come in: bounds on the choices that wait and run, and on their prompt tokens, before anything is computed.

A full queue refuses before it tokenizes; how many tokens a prompt has is known only afterwards, so a request that would
go over the bound by itself is refused then. Both are all or nothing: choices and prompts of one request count fully.
"""

import math
import time

from forebay_server.errors import InvalidRequestError, OverloadedError, UnavailableError
from forebay_server.ops.shared_state import SharedState

DRAIN_RETRY_SECONDS = 5
_MAX_RETRY_SECONDS = 60


class Admission:
    """Counts choices and their prompt tokens from admission to their end.

    Args:
        max_choices: more at a time get 429.
        max_tokens: prompt tokens; more at a time get 429. None: no bound.
        state: where the count is published.
    """

    def __init__(self, max_choices: int, max_tokens: int | None, state: SharedState) -> None:
        self._max_choices = max_choices
        self._max_tokens = max_tokens
        self._state = state
        self._num_in_flight = 0
        self._num_tokens = 0
        self._seconds_per_choice = 0.1  # smoothed time between two ends, while busy
        self._last_end = time.monotonic()

    @property
    def num_in_flight(self) -> int:
        """Choices admitted and not ended."""
        return self._num_in_flight

    def refuse_when_full(self) -> None:
        """Refuse whatever comes while there is no place at all: before its body is read, for a fraction of the cost.

        Raises:
            OverloadedError: no request could be admitted now.
        """
        if self._num_in_flight >= self._max_choices:
            raise self._overloaded(f"{self._num_in_flight} requests wait or run, the limit is {self._max_choices}")
        if self._max_tokens is not None and self._num_tokens >= self._max_tokens:
            raise self._too_many_tokens()

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
            raise self._overloaded(f"{self._num_in_flight} requests wait or run, the limit is {self._max_choices}")
        if self._max_tokens is not None and self._num_tokens >= self._max_tokens:
            raise self._too_many_tokens()
        self._num_in_flight += num_choices
        self._state.put("num_in_flight", self._num_in_flight)

    def admit_tokens(self, num_tokens: int) -> None:
        """Take room for the prompt tokens of all choices of a request that has its places, or for none.

        Raises:
            InvalidRequestError: the request alone is more than there is room for at any time.
            OverloadedError: too many are there.
        """
        if self._max_tokens is not None:
            if num_tokens > self._max_tokens:
                raise InvalidRequestError(
                    f"all prompts together have {num_tokens} tokens; this server takes {self._max_tokens} at a time"
                )
            if self._num_tokens + num_tokens > self._max_tokens:
                raise self._too_many_tokens()
        self._num_tokens += num_tokens

    def _too_many_tokens(self) -> OverloadedError:
        return self._overloaded(f"{self._num_tokens} prompt tokens wait or run, the limit is {self._max_tokens}")

    def _overloaded(self, reason: str) -> OverloadedError:
        wait = math.ceil(min(_MAX_RETRY_SECONDS, max(1.0, self._seconds_per_choice * self._num_in_flight / 2)))
        self._state.add("num_admission_rejections", 1)
        return OverloadedError(f"the server is busy: {reason}", code="queue_full", retry_after_seconds=wait)

    def release(self, num_choices: int, num_tokens: int = 0) -> None:
        """Give back the places of choices that ended, and the room for their prompt tokens."""
        self._num_tokens -= num_tokens
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
