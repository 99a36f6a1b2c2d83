"""Throw too much, and for long, at a server that runs, and check what comes of it. Exit code 1 when a check fails.

python server/benchmarks/stress.py flood  --url http://localhost:8000 --ops-url http://localhost:8001
python server/benchmarks/stress.py aborts --url http://localhost:8000 --ops-url http://localhost:8001 --number 500
python server/benchmarks/stress.py soak   --url http://localhost:8000 --ops-url http://localhost:8001 --minutes 60

flood: all requests at once (start the server with --max-queued-requests 100): each is answered or refused with 429.
aborts: clients that leave at random times; in the end every gauge is zero.
soak: mixed load (chat, completions, responses, embeddings; whole and streamed; choices, log-probabilities, structured
output, tools, shared beginnings, long prompts, bad bodies, clients that leave); memory stays flat.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

JSON_TYPE = {"Content-Type": "application/json"}
OWN_MEMORY = re.compile(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", re.MULTILINE)
SHARED_BEGINNING = "You are a helpful assistant who answers briefly and to the point. " * 4
LEAST_WORDS, MOST_WORDS, LONG_WORDS = 3, 40, 400
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"name": "look_up", "description": "Looks up a person.", "parameters": SCHEMA}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BAD_BODIES: list[tuple[str, bytes]] = [
    (COMPLETIONS, b'{"prompt": "x", "temperature": -1}'),
    (COMPLETIONS, b'{"prompt": "x", "max_tokens": NaN}'),
    (COMPLETIONS, b'{"prompt": '),
    (CHAT, b""),
    (CHAT, b"[" * 10_000),
    (CHAT, b'{"messages": [{"role": "user", "content": "\xff"}]}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}}'),
    (RESPONSES, b'{"input": [{"role": "nobody", "content": 5}]}'),
    ("/v1/embeddings", b'{"input": []}'),
]


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

    async def post(self, body: dict[str, Any], findings: Findings, path: str = COMPLETIONS) -> bytes:
        """One request to the end; the body of its answer."""
        started = time.perf_counter()
        async with self._session.post(self._url + path, json=body) as response:
            content = await response.read()
        findings.statuses[response.status] += 1
        if response.status == 429:
            findings.refusal_seconds.append(time.perf_counter() - started)
            findings.check("Retry-After" in response.headers, "a 429 without Retry-After")
        findings.check(response.status < 500, f"{response.status}: {content[:300].decode(errors='replace')}")
        if response.status == 200 and not body.get("stream"):
            usage = json.loads(content)["usage"]
            findings.num_tokens += usage.get("completion_tokens", usage.get("output_tokens", 0))
            if body.get("ignore_eos"):
                wanted = body["max_tokens"] * body.get("n", 1)
                findings.check(usage["completion_tokens"] == wanted, f"{usage} for max_tokens {body['max_tokens']}")
        if response.status == 200 and body.get("stream") and path != RESPONSES:
            is_whole = content.endswith(b"data: [DONE]\n\n") and b'data: {"error"' not in content
            findings.check(is_whole, f"a stream ends with {content[-300:].decode(errors='replace')}")
        return content

    async def post_bad(self, path: str, body: bytes, findings: Findings) -> None:
        """One request that cannot be right."""
        async with self._session.post(self._url + path, data=body, headers=JSON_TYPE) as response:
            content = await response.read()
        findings.statuses[response.status] += 1
        told = f"{response.status} for a bad body: {content[:300].decode(errors='replace')}"
        findings.check(response.status in (400, 429), told)

    async def leave(self, body: dict[str, Any], seconds: float, path: str = COMPLETIONS) -> None:
        """Send a request and close the connection after some time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._session.post(self._url + path, json=body) as response:
                await response.read()

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


def memory_bytes(pid: int) -> dict[str, int]:
    """What a process and its children (Linux) hold, by the module that each runs; without the pages of files."""
    sizes: dict[str, int] = {}
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for number in (pid, *map(int, children)):
            words = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0")
            name = words[words.index("-m") + 1] if "-m" in words else "server"
            status = Path(f"/proc/{number}/status").read_text()
            sizes[name] = sum(1024 * int(size) for size in OWN_MEMORY.findall(status))
    except OSError:
        pass  # one of them has just ended
    return sizes


def mixed_body(source: random.Random, number: int) -> dict[str, Any]:
    """A request as some client might send it; every answer goes on to max_tokens."""
    words = " ".join(str(source.randrange(1000)) for _ in range(source.randint(LEAST_WORDS, MOST_WORDS)))
    body: dict[str, Any] = {
        "prompt": (SHARED_BEGINNING if number % 3 == 0 else "") + words,
        "max_tokens": source.randint(1, 32),
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


def mixed_request(source: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    """Path and body of any kind of request."""
    body = mixed_body(source, number)
    kind = number % 10
    if kind < 4:
        if kind == 3:
            body |= {"logprobs": source.randint(0, 5), "max_tokens": min(20, body["max_tokens"])}
        return COMPLETIONS, body
    if kind == 4 and number % 50 < 10:
        words = [str(source.randrange(1000)) for _ in range(LONG_WORDS)]
        return COMPLETIONS, body | {"prompt": " ".join(words), "max_tokens": 4}
    if kind == 4:
        return COMPLETIONS, body | {"echo": True, "logprobs": 2, "max_tokens": 4}
    if kind == 5:
        return "/v1/embeddings", {"input": [body["prompt"]] * source.randint(1, 4)}
    if kind == 6:
        text = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
        return RESPONSES, {"input": body["prompt"], "max_output_tokens": 40, "text": text, "stream": bool(number % 3)}
    messages = [{"role": "user", "content": body.pop("prompt")}]
    del body["ignore_eos"]
    if kind == 7:
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
        return CHAT, {**body, "messages": messages, "response_format": schema}
    if kind == 8:
        tools = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
        return CHAT, {**body, "messages": messages, **tools}
    return CHAT, {**body, "messages": messages, "logprobs": True, "top_logprobs": 3}


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
    memory: list[tuple[float, dict[str, int]]] = []

    async def client(number: int) -> None:
        while time.monotonic() < end:
            number += options.at_a_time
            path, body = mixed_request(source, source.randrange(1000))
            if number % 11 == 5:
                await target.leave(body, source.uniform(0.001, 1.0), path)
            elif number % 13 == 6:
                await target.post_bad(*source.choice(BAD_BODIES), findings)
            else:
                await target.post(body, findings, path)

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(min(options.sample_seconds, 3 * options.minutes))
            sizes = memory_bytes(options.pid) if options.pid else {}
            memory.append((time.monotonic() - started, sizes))
            told = (
                ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items()) or "no --pid: memory unknown"
            )
            print(f"{memory[-1][0]:7.0f} s  {sum(findings.statuses.values())} requests  {told}", flush=True)

    await asyncio.gather(watch(), *map(client, range(options.at_a_time)))
    await target.wait_until_idle(findings)
    late = [sample for sample in memory if sample[0] >= 6 * options.minutes]
    for name in sorted(set().union(*(sizes for _, sizes in late))):
        check_growth(name, [(seconds, sizes[name]) for seconds, sizes in late if name in sizes], options, findings)
    findings.check(findings.statuses[200] > 0, "nothing was answered")
    return findings


def check_growth(name: str, samples: list[tuple[float, int]], options: argparse.Namespace, findings: Findings) -> None:
    """Tell how the memory of a process went after the first tenth of the time; too much is a fault."""
    if len(samples) < 2:
        return
    sizes = [size for _, size in samples]
    growth = (statistics.median(sizes[-3:]) - statistics.median(sizes[:3])) / 1e6
    slope = 3600 * statistics.linear_regression(*zip(*samples, strict=True)).slope / 1e6
    print(
        f"{name}: {min(sizes) / 1e6:.1f} to {max(sizes) / 1e6:.1f} MB; "
        f"memory grew by {growth:.1f} MB after the first tenth of the time, {slope:.1f} MB an hour by least squares"
    )
    findings.check(growth < options.most_growth_mb, f"memory of {name} grew by {growth:.1f} MB")


async def run(options: argparse.Namespace) -> int:
    """Run one of the three and tell what was found."""
    started = time.perf_counter()
    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(total=None)) as session:
        findings = await options.work(Target(session, options), options)
    print(
        f"{options.mode}: {dict(sorted(findings.statuses.items()))} in {time.perf_counter() - started:.1f} s,", end=" "
    )
    print(f"{findings.num_tokens} tokens in whole answers")
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
    parser.add_argument("--sample-seconds", type=float, default=10, help="between two looks at the memory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.work = {"flood": flood, "aborts": aborts, "soak": soak}[options.mode]
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
