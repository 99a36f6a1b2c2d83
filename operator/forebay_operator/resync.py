"""Lists everything at start and every few minutes: repairs what a lost watch missed, and notices that it is lost."""

import asyncio
import logging
from collections.abc import Sequence

from forebay_operator import kinds
from forebay_operator.cache import Cache
from forebay_operator.errors import ApiError
from forebay_operator.kube import Kube
from forebay_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

GRACE_SECONDS = 15.0
"""A listing and a watch may tell of the same change this far apart."""


class Resync:
    """Keeps the cache whole and knows whether the watches still tell of changes. Belongs to one event loop."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        queue: WorkQueue,
        watched: Sequence[kinds.Kind],
        namespaces: Sequence[str],
        seconds: float,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._queue = queue
        self._watched = watched
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._seconds = seconds
        self._last_event: dict[kinds.Kind, float] = {}
        self._deaf: set[kinds.Kind] = set()
        self._started = asyncio.get_running_loop().time()
        self._last_success = self._started

    def saw_event(self, kind: kinds.Kind) -> None:
        """The watch of that kind is alive."""
        self._last_event[kind] = asyncio.get_running_loop().time()
        self._deaf.discard(kind)

    def trouble(self) -> str | None:
        """Why the operator should be restarted; None when it should not."""
        age = self.listing_age()
        if age > 3 * self._seconds + 60:
            return f"nothing could be listed for {age:.0f} s"
        if self._deaf:
            return "no events come for " + ", ".join(sorted(kind.plural for kind in self._deaf))
        return None

    def listing_age(self) -> float:
        """Seconds since everything was last listed."""
        return asyncio.get_running_loop().time() - self._last_success

    def watch_ages(self) -> dict[kinds.Kind, float]:
        """Seconds since the last event of each watch, or since the start where none has come."""
        now = asyncio.get_running_loop().time()
        return {kind: now - self._last_event.get(kind, self._started) for kind in self._watched}

    async def once(self) -> set[kinds.Kind]:
        """List everything and queue every service; the kinds of which something was news.

        Raises:
            ApiError: a listing failed.
        """
        news = set()
        for kind in self._watched:
            for namespace in self._namespaces if kind.namespaced else (None,):
                bodies, version = await self._kube.list_all(kind, namespace)
                if self._cache.replace(kind, namespace, bodies, version):
                    news.add(kind)
        for body in self._cache.all(kinds.INFERENCE_SERVICE):
            self._queue.add((body["metadata"]["namespace"], body["metadata"]["name"]))
        self._last_success = asyncio.get_running_loop().time()
        return news

    async def for_ever(self) -> None:
        """Resync at each interval; the first one is the caller's, before work begins."""
        while True:
            await asyncio.sleep(self._seconds)
            listed_at = asyncio.get_running_loop().time()
            try:
                news = await self.once()
            except ApiError as error:
                logger.warning("resync failed: %s", error)
                continue
            if news:
                await asyncio.sleep(GRACE_SECONDS)
                self.suspect(news, listed_at)

    def suspect(self, news: set[kinds.Kind], listed_at: float) -> None:
        """Kinds whose news came by listing and by no event around that time have lost their watch."""
        for kind in news:
            if self._last_event.get(kind, 0.0) < listed_at - GRACE_SECONDS:
                logger.warning("the listing of %s had news that no watch event brought", kind.plural)
                self._deaf.add(kind)
