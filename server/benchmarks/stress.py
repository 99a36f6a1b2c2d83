"""Throw too much, and for long, at a server that runs, and check what comes of it. Exit code 1 when a check fails.

python server/benchmarks/stress.py flood  --url http://localhost:8000 --ops-url http://localhost:8001
python server/benchmarks/stress.py aborts --url http://localhost:8000 --ops-url http://localhost:8001 --number 500
python server/benchmarks/stress.py soak   --url http://localhost:8000 --ops-url http://localhost:8001 --minutes 60

flood: all requests at once (start the server with --max-queued-requests 100): each is answered or refused with 429.
aborts: clients that leave at random times; in the end every gauge is zero.
soak: mixed load (whole, streams, choices, shared beginnings, bad requests, clients that leave); memory stays flat.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

SHARED_BEGINNING = "You are a helpful assistant who answers briefly and to the point. " * 4
LEAST_WORDS, MOST_WORDS = 3, 120


@dataclass(slots=True)
class Findings:
    """What happened, and what should not have."""

    statuses: Counter[int] = field(default_factory=Counter)
    refusal_seconds: list[float] = field(default_factory=list)
    num_tokens: int = 0
    faults: list[str] = field(default_factory=list)

    def check(self, holds: bool, fault: str) -> None:
        """Note a fault."""
        if not holds:
            self.faults.append(fault)


class Target:
    """One server.

    Args:
        session: of the client.
        options: with the addresses.
    """

    def __init__(self, session: aiohttp.ClientSession, options: argparse.Namespace) -> None:
        self._session = session
        self._url, self._ops_url = options.url.rstrip("/"), options.ops_url.rstrip("/")

    async def post(self, body: dict[str, Any], findings: Findings) -> bytes:
        """One request to the end; the body of its answer."""
        started = time.perf_counter()
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            content = await response.read()
        findings.statuses[response.status] += 1
        if response.status == 429:
            findings.refusal_seconds.append(time.perf_counter() - started)
            findings.check("Retry-After" in response.headers, "a 429 without Retry-After")
        findings.check(response.status < 500, f"{response.status}: {content[:300].decode(errors='replace')}")
        if response.status == 200 and not body.get("stream"):
            usage = json.loads(content)["usage"]
            findings.num_tokens += usage["completion_tokens"]
            wanted = body["max_tokens"] * body.get("n", 1)
            findings.check(usage["completion_tokens"] == wanted, f"{usage} for max_tokens {body['max_tokens']}")
        return content

    async def leave(self, body: dict[str, Any], seconds: float) -> None:
        """Send a request and close the connection after some time."""
        try:
            async with asyncio.timeout(seconds):
                async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
                    await response.read()
        except TimeoutError:
            pass

    async def load(self) -> dict[str, Any]:
        """What `/load` says."""
        async with self._session.get(f"{self._ops_url}/load") as response:
            return dict(await response.json())

    async def wait_until_idle(self, findings: Findings, seconds: float = 30) -> None:
        """Note a fault when the gauges do not go back to zero."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            load = await self.load()
            if load["running"] == load["waiting"] == load["kvUsage"] == 0:
                return
            await asyncio.sleep(0.1)
        findings.faults.append(f"not idle after {seconds:g} s: {load}")


def resident_bytes(pid: int) -> int:
    """Of a process and its children (Linux); 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return pages * 4096 + sum(resident_bytes(int(child)) for child in children)


def mixed_body(source: random.Random, number: int) -> dict[str, Any]:
    """A request as some client might send it; every answer goes on to max_tokens."""
    words = " ".join(str(source.randrange(1000)) for _ in range(source.randint(LEAST_WORDS, MOST_WORDS)))
    body: dict[str, Any] = {
        "prompt": (SHARED_BEGINNING if number % 3 == 0 else "") + words,
        "max_tokens": source.randint(1, 60),
        "ignore_eos": True,
        "temperature": source.choice([0, 0.7, 1]),
    }
    if number % 4 == 1:
        body["stream"] = True
    if number % 7 == 2:
        body["n"] = source.randint(2, 4)
    if number % 5 == 3:
        body["user"] = f"tenant-{source.randrange(4)}"
    return body


async def flood(target: Target, options: argparse.Namespace) -> Findings:
    """Everything at once: answered in full, or refused at once."""
    findings = Findings()
    bodies = [
        {"prompt": f"request {number}", "max_tokens": 16, "ignore_eos": True, "temperature": 0}
        for number in range(options.number)
    ]
    await asyncio.gather(*(target.post(body, findings) for body in bodies))
    await target.wait_until_idle(findings)
    findings.check(set(findings.statuses) <= {200, 429}, f"statuses: {dict(findings.statuses)}")
    return findings


async def aborts(target: Target, options: argparse.Namespace) -> Findings:
    """Clients that leave at random times, a few at a time; then one that stays."""
    findings = Findings()
    source = random.Random(options.seed)
    room = asyncio.Semaphore(options.at_a_time)

    async def one(number: int) -> None:
        async with room:
            await target.leave(mixed_body(source, number) | {"max_tokens": 200}, source.uniform(0.001, 0.5))

    await asyncio.gather(*map(one, range(options.number)))
    await target.wait_until_idle(findings)
    await target.post({"prompt": "still there?", "max_tokens": 3, "ignore_eos": True}, findings)
    findings.check(findings.statuses == {200: 1}, f"afterwards: {dict(findings.statuses)}")
    return findings


async def soak(target: Target, options: argparse.Namespace) -> Findings:
    """Mixed load for minutes; memory is compared after a tenth of the time and at the end."""
    findings = Findings()
    source = random.Random(options.seed)
    started = time.monotonic()
    end = started + 60 * options.minutes
    memory: list[tuple[float, int]] = []

    async def client(number: int) -> None:
        while time.monotonic() < end:
            number += options.at_a_time
            body = mixed_body(source, number)
            if number % 11 == 5:
                await target.leave(body | {"max_tokens": 200}, source.uniform(0.001, 1.0))
            elif number % 13 == 6:
                await target.post(body | {"temperature": -1}, findings)
            else:
                await target.post(body, findings)

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(min(10.0, 3 * options.minutes))
            memory.append((time.monotonic() - started, resident_bytes(options.pid) if options.pid else 0))
            told = f"{memory[-1][1] / 1e6:.1f} MB" if options.pid else "memory unknown (no --pid)"
            print(f"{memory[-1][0]:7.0f} s  {sum(findings.statuses.values())} requests  {told}", flush=True)

    await asyncio.gather(watch(), *map(client, range(options.at_a_time)))
    await target.wait_until_idle(findings)
    early = [size for seconds, size in memory if seconds >= 6 * options.minutes]
    if options.pid and len(early) > 1:
        growth = statistics.median(early[-3:]) - statistics.median(early[:3])
        print(f"memory grew by {growth / 1e6:.1f} MB after the first tenth of the time")
        findings.check(growth < options.most_growth_mb * 1e6, f"memory grew by {growth / 1e6:.1f} MB")
    findings.check(findings.statuses[200] > 0, "nothing was answered")
    return findings


async def run(options: argparse.Namespace) -> int:
    """Run one of the three and tell what was found."""
    started = time.perf_counter()
    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(total=None)) as session:
        findings = await options.work(Target(session, options), options)
    print(f"{options.mode}: {dict(sorted(findings.statuses.items()))} in {time.perf_counter() - started:.1f} s")
    if findings.refusal_seconds:
        ordered = sorted(findings.refusal_seconds)
        print(f"refusals, in ms as their clients saw them: median {1e3 * ordered[len(ordered) // 2]:.1f},", end=" ")
        print(f"95 % {1e3 * ordered[len(ordered) * 95 // 100]:.1f}, slowest {1e3 * ordered[-1]:.1f}")
    for fault in findings.faults[:20]:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if findings.faults else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["flood", "aborts", "soak"])
    parser.add_argument("--url", default="http://localhost:8000", help="of the API")
    parser.add_argument("--ops-url", default="http://localhost:8001", help="of the ops port")
    parser.add_argument("--number", type=int, default=2000, help="requests of flood and aborts")
    parser.add_argument("--minutes", type=float, default=60, help="that soak runs")
    parser.add_argument("--at-a-time", type=int, default=16, help="clients of aborts and soak")
    parser.add_argument("--pid", type=int, help="of the server on this machine: its memory is watched by soak")
    parser.add_argument("--most-growth-mb", type=float, default=64, help="of memory after the first tenth of a soak")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.work = {"flood": flood, "aborts": aborts, "soak": soak}[options.mode]
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
