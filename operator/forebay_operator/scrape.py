"""Asks pods on their ops port how far they are and how much they have to do."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from forebay_operator.flags import OPS_PORT
from forebay_operator.scraped import Measured, Scraped

TIMEOUT_SECONDS = 2.0
CONCURRENCY = 32
MAX_ANSWER_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """A pod to ask."""

    uid: str
    address: str
    """The pod's IP."""
    ready: bool = True
    """What it said before it was ready is not remembered afterwards."""

    @property
    def key(self) -> tuple[str, bool]:
        """What an answer is remembered by."""
        return self.uid, self.ready


class Scraper:
    """Asks each pod at most once an interval and remembers the answer: also the answer that none came."""

    def __init__(
        self, interval_seconds: float, port: int = OPS_PORT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = interval_seconds
        self._port = port
        self._clock = clock
        self._answers: dict[tuple[str, bool], tuple[float, Scraped | None]] = {}
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, targets: Iterable[Target]) -> dict[str, Scraped]:
        """What the pods say, by uid; those that do not answer are left out."""
        now = self._clock()
        self._forget(now)
        wanted = list(targets)
        due = [t for t in wanted if t.key not in self._answers or now - self._answers[t.key][0] >= self._interval]
        for target, answer in zip(due, await asyncio.gather(*(self._one(target) for target in due)), strict=True):
            self._answers[target.key] = (now, answer)
        answers = {target.uid: self._answers[target.key][1] for target in wanted}
        return {uid: answer for uid, answer in answers.items() if answer is not None}

    def _forget(self, now: float) -> None:
        old = [key for key, (at, _) in self._answers.items() if now - at > 10 * self._interval]
        for key in old:
            del self._answers[key]

    async def _one(self, target: Target) -> Scraped | None:
        async with self._slots:
            progress, load = await asyncio.gather(self._get(target, "startupz"), self._get(target, "load"))
        return None if progress is None and load is None else scraped(progress or {}, load or {})

    async def _get(self, target: Target, path: str) -> dict[str, Any] | None:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        host = f"[{target.address}]" if ":" in target.address else target.address
        try:
            async with self._session.get(f"http://{host}:{self._port}/{path}") as response:
                if response.status != 200:
                    return None
                body = bytearray()
                async for chunk in response.content.iter_chunked(4096):
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        return None
                return _parse(bytes(body))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None  # a pod that does not answer is a fact about it, not an error of ours


def scraped(progress: Mapping[str, object], load: Mapping[str, object]) -> Scraped:
    """What the bodies of `/startupz` and `/load` say; a value that is no count is one that was not said."""
    phase = progress.get("phase")
    return Scraped(
        phase=phase if isinstance(phase, str) else None,
        bytes_loaded=_count(progress.get("bytesDone")),
        bytes_total=_count(progress.get("bytesTotal")),
        running=_count(load.get("running")),
        waiting=_count(load.get("waiting")),
        measured=_measured(progress.get("measured")),
    )


def _measured(report: object) -> Measured | None:
    if not isinstance(report, Mapping):
        return None
    told = Measured(
        weight_bytes=_count(report.get("weightBytes")),
        kv_cache_tokens=_count(report.get("kvCacheTokens")),
        kv_bytes_per_token=_count(report.get("kvBytesPerToken")),
        activation_peak_bytes=_count(report.get("activationPeakBytes")),
        free_bytes=_count(report.get("freeBytes")),
    )
    return None if told == Measured() else told


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
