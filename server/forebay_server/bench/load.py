"""Runs a load: a closed loop of so many clients, or an open loop that sends when the arrivals say so."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from forebay_server.bench.arrivals import burst_arrivals, poisson_arrivals
from forebay_server.bench.records import RequestRecord
from forebay_server.bench.workload import Prompt

MAX_CONNECTION_FAILURES = 20
"""In a row: then nobody is there any more, and the load ends."""


Sender = Callable[[Prompt, RequestRecord], Coroutine[Any, Any, None]]
"""Sends one prompt and fills its record; returns when the answer is whole or has failed."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What load. Exactly one of concurrency, rate and burst_size is set."""

    num_requests: int | None
    duration: float | None
    """Seconds in which requests are sent; at least one of this and num_requests is set."""
    concurrency: int | None = None
    """Closed loop: so many clients, each sends when its answer has come."""
    rate: float | None = None
    """Poisson arrivals a second."""
    burst_size: int | None = None
    burst_interval: float = 1.0
    """Seconds from one burst to the next."""
    max_concurrency: int | None = None
    """Of an open loop: later requests wait here, and the wait shows as send delay."""
    seed: int = 0


class Load:
    """One run of a plan.

    Args:
        plan: what load.
        prompts: without end.
        send: one request.
        on_end: called after each request, for a progress bar.
    """

    def __init__(
        self, plan: LoadPlan, prompts: Iterator[Prompt], send: Sender, on_end: Callable[[RequestRecord], None]
    ) -> None:
        self._plan = plan
        self._prompts = prompts
        self._send = send
        self._on_end = on_end
        self.records: list[RequestRecord] = []
        """Of every request that was sent so far."""
        self._failures_in_a_row = 0

    @property
    def server_is_gone(self) -> bool:
        """Whether the load ended early because nobody was there any more."""
        return self._failures_in_a_row >= MAX_CONNECTION_FAILURES

    async def run(self) -> None:
        """Send everything and wait for every answer. When cancelled, `records` has what is known."""
        started = time.perf_counter()
        if self._plan.concurrency is not None:
            async with asyncio.TaskGroup() as clients:
                for _ in range(self._plan.concurrency):
                    clients.create_task(self._client(started))
            return
        slots = asyncio.Semaphore(self._plan.max_concurrency or 1_000_000)
        async with asyncio.TaskGroup() as requests:
            async for scheduled in self._arrivals(started):
                await slots.acquire()
                if not self._goes_on(0.0):
                    break
                task = requests.create_task(self._one(scheduled))
                task.add_done_callback(lambda _: slots.release())

    async def _client(self, started: float) -> None:
        while self._goes_on(time.perf_counter() - started):
            await self._one(time.perf_counter())

    async def _arrivals(self, started: float) -> AsyncIterator[float]:
        """The times of the plan, each when it has come."""
        plan = self._plan
        if plan.rate is not None:
            offsets = poisson_arrivals(plan.rate, random.Random(plan.seed))
        else:
            offsets = burst_arrivals(plan.burst_size or 1, plan.burst_interval)
        for offset in offsets:
            if not self._goes_on(offset):
                return
            await asyncio.sleep(max(0.0, started + offset - time.perf_counter()))
            yield started + offset

    def _goes_on(self, elapsed: float) -> bool:
        plan = self._plan
        is_enough = plan.num_requests is not None and len(self.records) >= plan.num_requests
        is_late = plan.duration is not None and elapsed >= plan.duration
        return not (is_enough or is_late or self.server_is_gone)

    async def _one(self, scheduled: float) -> None:
        prompt = next(self._prompts)
        record = RequestRecord(len(self.records), scheduled, prompt_tokens=prompt.num_tokens)
        record.sent = record.ended = scheduled
        self.records.append(record)
        try:
            await self._send(prompt, record)
        except asyncio.CancelledError:
            record.error, record.ended = "interrupted", time.perf_counter()
            raise
        self._failures_in_a_row = self._failures_in_a_row + 1 if record.error == "connection" else 0
        self._on_end(record)


def as_plain(record: RequestRecord) -> dict[str, Any]:
    """One request for a file of all of them; times in seconds from the clock of this process."""
    return {
        "index": record.index,
        "scheduled": record.scheduled,
        "sent": record.sent,
        "ended": record.ended,
        "chunk_times": record.chunk_times,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "error": record.error,
        "error_detail": record.error_detail,
    }
