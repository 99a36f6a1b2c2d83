"""Pods are asked over real HTTP; the fake engine answers as the contract says."""

from collections.abc import AsyncIterator, Iterator

import pytest

from forebay_operator.scrape import Scraper, Target, scraped
from forebay_operator.scraped import Measured, Scraped
from tests.fakes.contract_server import State, answer, serve


@pytest.fixture
def engine() -> Iterator[tuple[State, int]]:
    state = State({})
    servers = serve(state, "fake", 0, 0)
    yield state, servers[1].server_address[1]
    for server in servers:
        server.shutdown()
        server.server_close()


class Clock:
    """Monotonic seconds, turned by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def scraper(engine: tuple[State, int]) -> AsyncIterator[tuple[Scraper, Clock]]:
    clock = Clock()
    scraper = Scraper(10, port=engine[1], clock=clock)
    yield scraper, clock
    await scraper.close()


HERE = Target("uid", "127.0.0.1")


async def test_progress_and_load_are_read(engine: tuple[State, int], scraper: tuple[Scraper, Clock]) -> None:
    engine[0].change({"running": 3, "waiting": 7})
    told = (await scraper[0].ask([HERE]))["uid"]
    assert told == Scraped(phase="serving", bytes_loaded=10**8, bytes_total=10**8, running=3, waiting=7)


async def test_a_pod_is_asked_once_an_interval(engine: tuple[State, int], scraper: tuple[Scraper, Clock]) -> None:
    asking, clock = scraper
    await asking.ask([HERE])
    engine[0].change({"waiting": 9})
    assert (await asking.ask([HERE]))["uid"].waiting == 0
    clock.now = 10
    assert (await asking.ask([HERE]))["uid"].waiting == 9


async def test_a_pod_that_has_become_ready_is_asked_at_once(
    engine: tuple[State, int], scraper: tuple[Scraper, Clock]
) -> None:
    starting = Target("uid", "127.0.0.1", ready=False)
    engine[0].change({"loadStatus": 500})
    assert (await scraper[0].ask([starting]))["uid"].waiting is None
    engine[0].change({"loadStatus": 200})
    assert (await scraper[0].ask([HERE]))["uid"].waiting == 0


async def test_a_load_that_cannot_be_read_is_neither_zero_nor_the_last_one(
    engine: tuple[State, int], scraper: tuple[Scraper, Clock]
) -> None:
    asking, clock = scraper
    engine[0].change({"waiting": 9})
    await asking.ask([HERE])
    engine[0].change({"loadStatus": 500})
    clock.now = 10
    told = (await asking.ask([HERE]))["uid"]
    assert (told.phase, told.waiting, told.running) == ("serving", None, None)


async def test_a_pod_that_does_not_answer_is_left_out(scraper: tuple[Scraper, Clock]) -> None:
    assert set(await scraper[0].ask([HERE, Target("gone", "127.0.0.2")])) <= {"uid", "gone"}
    nowhere = Scraper(10, port=9)
    assert await nowhere.ask([HERE]) == {}
    await nowhere.close()


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True, []])
def test_what_is_no_count_was_not_said(value: object) -> None:
    assert scraped({"bytesDone": value, "measured": {"weightBytes": value}}, {"waiting": value}) == Scraped()
    assert scraped({"measured": value}, {}) == Scraped()


def test_a_measurement_may_be_partial() -> None:
    assert scraped({"measured": {"weightBytes": 7}}, {}) == Scraped(measured=Measured(weight_bytes=7))


@pytest.mark.parametrize(
    ("fields", "path", "status"),
    [
        ({}, "/livez", 200),
        ({"hung": 1}, "/livez", 503),
        ({}, "/readyz", 200),
        ({"loadSeconds": 1000}, "/readyz", 503),
        ({"loadSeconds": 1000}, "/livez", 200),
        ({}, "/nothing", 404),
    ],
)
def test_the_fake_engine_answers_probes_as_the_contract_says(fields: dict[str, float], path: str, status: int) -> None:
    state = State({})
    state.change(fields)
    assert answer(state, path)[0] == status
