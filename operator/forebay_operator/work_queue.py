"""WorkQueue: which services are to be reconciled; each key waits once and is worked on by one worker at a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from forebay_operator.errors import ApiError

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of an InferenceService."""
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 120.0


class WorkQueue:
    """A queue of keys that coalesces, delays and backs off. Belongs to one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        """Keys in `_ready`."""
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        """Keys that were added while they were worked on."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._started: dict[Key, float] = {}
        self.num_retries = 0
        """Failures so far, each of which is tried again."""

    def add(self, key: Key) -> None:
        """Work on a key as soon as a worker is free."""
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Work on a key after some time at the latest; an earlier time that was set before stays."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    @property
    def num_waiting(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        """Keys that are worked on."""
        return len(self._active)

    def delay_of(self, key: Key) -> float | None:
        """Seconds until a key comes by itself; None: it does not."""
        timer = self._timers.get(key)
        return None if timer is None else timer.when() - asyncio.get_running_loop().time()

    def longest_active_seconds(self) -> float:
        """How long the oldest work in progress has been going on; 0 when there is none."""
        now = asyncio.get_running_loop().time()
        return max((now - started for started in self._started.values()), default=0.0)

    async def work(self, handle: Callable[[Key], Awaitable[float | None]]) -> None:
        """Work for ever; `handle` returns after how many seconds it wants the key again, None for not by itself."""
        while True:
            await self.work_once(handle)

    async def work_once(self, handle: Callable[[Key], Awaitable[float | None]]) -> None:
        """Take the next key, waiting for one, and handle it."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._active.add(key)
        self._started[key] = asyncio.get_running_loop().time()
        if timer := self._timers.pop(key, None):
            timer.cancel()
        try:
            again = await handle(key)
        except ApiError as error:
            again = self._failed(key)
            logger.warning("%s/%s: %s; again in %.0f s", *key, error, again)
        except Exception:
            # One service's trouble must not stop the others: log it with its trace and try again, ever more slowly.
            again = self._failed(key)
            logger.exception("%s/%s: reconcile failed", *key)
        else:
            self._failures.pop(key, None)
        finally:
            self._active.discard(key)
            self._started.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            if key not in self._failures:
                self.add(key)
        if again is not None:
            self.add_after(key, again)

    def _failed(self, key: Key) -> float:
        """Count a failure; the delay before the next attempt."""
        self.num_retries += 1
        self._failures[key] = self._failures.get(key, 0) + 1
        exponent = min(self._failures[key] - 1, 16)
        return float(min(FIRST_BACKOFF_SECONDS * 2**exponent, LONGEST_BACKOFF_SECONDS))

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)
