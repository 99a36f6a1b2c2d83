"""What a connection adds to uvicorn's: writes are gathered."""

import asyncio

from forebay_server.api.connection import GatheringTransport


class Recorder(asyncio.Transport):
    """Keeps what is written, each call by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes | str] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data))

    def close(self) -> None:
        self.calls.append("closed")
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


async def test_writes_of_a_round_are_one_and_rounds_stay_apart() -> None:
    below = Recorder()
    transport = GatheringTransport(below, asyncio.get_running_loop())
    transport.write(b"head ")
    transport.write(b"body")
    assert below.calls == []
    await asyncio.sleep(0)
    transport.write(b"more")
    await asyncio.sleep(0)
    assert below.calls == [b"head body", b"more"]
    assert not transport.is_closing()


async def test_closing_sends_what_is_there_and_nothing_after() -> None:
    below = Recorder()
    transport = GatheringTransport(below, asyncio.get_running_loop())
    transport.write(b"last")
    transport.close()
    transport.write(b"too late")
    await asyncio.sleep(0)
    assert below.calls == [b"last", "closed"]
