"""What a refusal costs when the queue is full: CPU time of the API process, and how long clients wait for it.

python server/benchmarks/bench_refusals.py                                   # 2,000 clients at once
python server/benchmarks/bench_refusals.py --connections 200 --number 20000  # 200 that come back at once, kept alive
python server/benchmarks/bench_refusals.py --per-second 2000                 # at a steady pace

The queue has one place, which a stream keeps. The clients are bare sockets in this process; their clocks run from when
they begin to connect (or to send, on a connection that they have) to the last byte of the answer.
"""

import argparse
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from benchmarks.bench_api import cpu_seconds, server

ADDRESS = "127.0.0.1"


@dataclass(slots=True)
class Client:
    """One connection, and what it still has to send."""

    num_left: int
    connection: socket.socket = field(default_factory=socket.socket)
    started: float = 0.0
    received: bytes = b""


@dataclass(frozen=True, slots=True)
class Figures:
    """One repetition."""

    seconds: float
    cpu_ms: float
    """Of the API process, for each refusal."""
    waits_ms: list[float]
    """Sorted."""

    def __str__(self) -> str:
        shares = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "slowest": 1.0}
        waits = ", ".join(
            f"{name} {self.waits_ms[min(int(share * len(self.waits_ms)), len(self.waits_ms) - 1)]:.1f}"
            for name, share in shares.items()
        )
        return f"{len(self.waits_ms)} refusals in {self.seconds:.2f} s, {self.cpu_ms:.3f} ms of CPU each; ms: {waits}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print every repetition."""
    options = _parse(arguments)
    with (
        server(["--max-queued-requests", "1", *options.serve], step_seconds=1) as (port, pid),
        _stream(port),
    ):
        for _ in range(options.repeats):
            started, cpu = time.monotonic(), cpu_seconds(pid)
            waits = _refusals(port, options.number, options.connections or options.number, options.per_second)
            cpu = cpu_seconds(pid) - cpu
            print(Figures(time.monotonic() - started, 1e3 * cpu / options.number, sorted(waits)), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


@contextmanager
def _stream(port: int) -> Iterator[None]:
    """A request that keeps the only place."""
    with socket.create_connection((ADDRESS, port)) as connection:
        connection.sendall(_request(max_tokens=400))
        connection.recv(1)
        yield


def _refusals(port: int, number: int, num_clients: int, per_second: float | None) -> list[float]:
    """Send requests that are refused; milliseconds of each."""
    clients = [Client(number // num_clients) for _ in range(num_clients)]
    waits: list[float] = []
    with selectors.DefaultSelector() as selector:
        begun = time.monotonic()
        for index, client in enumerate(clients):
            while per_second is not None and time.monotonic() < begun + index / per_second:
                _read(selector, waits, timeout=0.0)
            _connect(client, port, selector)
        while len(waits) < num_clients * (number // num_clients):
            _read(selector, waits, timeout=10.0)
    return waits


def _connect(client: Client, port: int, selector: selectors.BaseSelector) -> None:
    client.connection.setblocking(False)
    client.started = time.monotonic()
    with suppress(BlockingIOError):
        client.connection.connect((ADDRESS, port))
    selector.register(client.connection, selectors.EVENT_WRITE, client)


def _read(selector: selectors.BaseSelector, waits: list[float], timeout: float) -> None:
    """Send on connections that are there, and take in what has come.

    Raises:
        RuntimeError: nothing came in time, or something else than a refusal.
    """
    ready = selector.select(timeout)
    if not ready and timeout:
        raise RuntimeError(f"nothing came for {timeout:g} s")
    for key, events in ready:
        client: Client = key.data
        if events & selectors.EVENT_WRITE:
            client.connection.send(REFUSED)
            selector.modify(client.connection, selectors.EVENT_READ, client)
            continue
        client.received += client.connection.recv(65536)
        if not client.received.endswith(b"}"):  # the body is one JSON object, without spaces around it
            continue
        waits.append(1e3 * (time.monotonic() - client.started))
        if b" 429 " not in client.received[:16]:
            raise RuntimeError(f"no refusal: {client.received!r}")
        client.received = b""
        client.num_left -= 1
        if client.num_left:
            client.started = time.monotonic()
            client.connection.send(REFUSED)
        else:
            selector.unregister(client.connection)
            client.connection.close()


def _request(max_tokens: int) -> bytes:
    asked = {"messages": [{"role": "user", "content": "a word and another"}], "stream": True, "ignore_eos": True}
    body = json.dumps({**asked, "max_tokens": max_tokens}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


REFUSED = _request(max_tokens=16)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=2000, help="requests (default: %(default)s)")
    parser.add_argument("--connections", type=int, help="at a time (default: one for each request)")
    parser.add_argument("--per-second", type=float, help="new connections; not all at once")
    parser.add_argument("--repeats", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--serve", action="append", default=[], help="a further flag of `forebay serve`")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
