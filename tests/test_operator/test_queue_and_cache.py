"""The queue coalesces and backs off; the cache never goes back in time."""

import asyncio
from typing import Any

import pytest

from forebay_operator import kinds
from forebay_operator.cache import Cache
from forebay_operator.errors import ApiError
from forebay_operator.resync import Resync
from forebay_operator.work_queue import FIRST_BACKOFF_SECONDS, Key, WorkQueue
from tests.test_operator.fake_kube import FakeKube

A: Key = ("ns", "a")
B: Key = ("ns", "b")


async def test_a_key_waits_once_however_often_it_is_added() -> None:
    queue = WorkQueue()
    for _ in range(5):
        queue.add(A)
    queue.add(B)
    assert queue.num_waiting == 2


async def test_one_worker_a_key_and_news_during_the_work_are_not_lost() -> None:
    queue, done = WorkQueue(), []
    release = asyncio.Event()

    async def handle(key: Key) -> None:
        queue.add(key)  # news comes while it is worked on
        await release.wait()
        done.append(key)

    queue.add(A)
    first = asyncio.create_task(queue.work_once(handle))
    second = asyncio.create_task(queue.work_once(handle))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not second.done()
    assert queue.num_waiting == 0
    release.set()
    await first
    await second
    assert done == [A, A]


@pytest.mark.parametrize("error", [ApiError("away"), ValueError("a fault of ours")])
async def test_failures_back_off_and_do_not_stop_the_worker(error: Exception, caplog: Any) -> None:
    queue = WorkQueue()

    async def handle(key: Key) -> None:
        raise error

    delays = []
    for _ in range(3):
        queue.add(A)
        await queue.work_once(handle)
        delays.append(queue.delay_of(A))
    assert delays[0] == pytest.approx(FIRST_BACKOFF_SECONDS, abs=0.1)
    assert delays[1] == pytest.approx(2 * FIRST_BACKOFF_SECONDS, abs=0.1)
    assert delays[2] == pytest.approx(4 * FIRST_BACKOFF_SECONDS, abs=0.1)
    assert str(error) in caplog.text


async def test_the_earliest_wish_wins() -> None:
    queue = WorkQueue()
    queue.add_after(A, 60)
    queue.add_after(A, 10)
    queue.add_after(A, 30)
    assert queue.delay_of(A) == pytest.approx(10, abs=0.1)


def body(version: int, uid: str = "1", name: str = "x", namespace: str = "ns") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}}


def test_older_news_changes_nothing() -> None:
    cache = Cache()
    assert cache.put(kinds.POD, body(5))
    assert not cache.put(kinds.POD, body(5))
    assert not cache.put(kinds.POD, body(4))
    assert cache.put(kinds.POD, body(3, uid="2"))  # another object of the same name


def test_the_end_of_an_earlier_object_does_not_remove_its_successor() -> None:
    cache = Cache()
    cache.put(kinds.POD, body(7, uid="2"))
    cache.remove(kinds.POD, body(6, uid="1"))
    assert cache.get(kinds.POD, "ns", "x") is not None


def test_a_listing_removes_ghosts_but_nothing_newer_and_nothing_elsewhere() -> None:
    cache = Cache()
    cache.put(kinds.POD, body(5, name="ghost"))
    cache.put(kinds.POD, body(12, name="newer"))
    cache.put(kinds.POD, body(5, name="x", namespace="other"))
    assert cache.replace(kinds.POD, "ns", [body(6)], "10")
    names = sorted(b["metadata"]["name"] for b in cache.all(kinds.POD))
    assert names == ["newer", "x", "x"]
    assert not cache.replace(kinds.POD, "ns", [body(6)], "10")


async def test_news_that_only_listings_bring_make_the_operator_unhealthy_kopf_585() -> None:
    kube = FakeKube()
    resync = Resync(kube, Cache(), WorkQueue(), kinds.WATCHED, (), 300)
    kube.store(kinds.POD, {"metadata": {"name": "p", "namespace": "ns"}})
    news = await resync.once()
    assert news == {kinds.POD}
    resync.saw_event(kinds.POD)
    resync.suspect(news, listed_at=asyncio.get_running_loop().time())
    assert resync.trouble() is None
    resync.suspect(news, listed_at=asyncio.get_running_loop().time() + 60)
    assert resync.trouble() == "no events come for pods"
    resync.saw_event(kinds.POD)
    assert resync.trouble() is None
