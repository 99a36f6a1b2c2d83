"""What the API process pays, in CPU time, for a streamed token, with a stand-in for the engine that computes nothing.

python server/benchmarks/bench_api.py
python server/benchmarks/bench_api.py --streams 256 --tokens 200 --path /v1/completions --json result.json
python server/benchmarks/bench_api.py --serve="--request-log=/tmp/log" --serve=--otlp-traces-endpoint=http://localhost:4318

The clients are in this process: they read bytes and do not parse, and their CPU time is not counted.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(r"API on http://[^ ]+?:(\d+), probes and metrics on http://[^ ]+?:(\d+)")
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 60.0
_WRITE_MODEL = """
import pathlib, sys
from tests.fakes.tiny_model import write_tiny_model
write_tiny_model(pathlib.Path(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One repetition."""

    path: str
    streams: int
    tokens: int
    seconds: float
    cpu_ms_per_token: float
    """Of the API process alone, user and system."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 when the limit that was given is not kept."""
    options = _parser().parse_args(arguments)
    places = str(options.streams)
    flags = ["--max-num-seqs", places, "--max-queued-requests", places, *options.serve]
    with server(flags, step_seconds=options.step_seconds) as (port, pid):
        figures = [_measure(port, pid, options) for _ in range(options.repeats)]
    best = min(figures, key=lambda figure: figure.cpu_ms_per_token)
    for figure in figures:
        print(f"{figure.tokens} tokens in {figure.seconds:.2f} s: {figure.cpu_ms_per_token:.4f} ms of CPU a token")
    print(f"best of {len(figures)}: {best.cpu_ms_per_token:.4f} ms a token, {options.streams} streams, {options.path}")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    return int(options.limit_ms is not None and best.cpu_ms_per_token > options.limit_ms)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256, help="clients at a time (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=100, help="of each stream (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="the best counts (default: %(default)s)")
    parser.add_argument("--path", default="/v1/chat/completions", help="(default: %(default)s)")
    parser.add_argument("--step-seconds", type=float, default=0.02, help="of the stand-in (default: %(default)s)")
    parser.add_argument("--limit-ms", type=float, help="exit with 1 when a token costs more")
    parser.add_argument("--json", help="write every repetition to this file")
    parser.add_argument("--serve", action="append", default=[], help="a further flag of `forebay serve`")
    return parser


@contextmanager
def server(flags: Sequence[str], *, step_seconds: float) -> Iterator[tuple[int, int]]:
    """`forebay serve` with the stand-in: its port and its process.

    Args:
        flags: of `forebay serve`, beside the model and the addresses.
        step_seconds: that a step of the stand-in takes.

    Raises:
        RuntimeError: it does not start.
    """
    environment = {**os.environ, "FAKE_STEP_SECONDS": str(step_seconds)}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("", "server", "kernels"))
    with tempfile.TemporaryDirectory() as folder:
        model, log_path = Path(folder) / "model", Path(folder) / "log"
        subprocess.run([sys.executable, "-c", _WRITE_MODEL, str(model)], check=True, cwd=ROOT, env=environment)
        serve = [sys.executable, "-m", "tests.fakes.serve_with_fake_engine", "--model", str(model), *flags]
        serve += ["--host", "127.0.0.1", "--port", "0", "--ops-port", "0"]
        with log_path.open("w") as log:
            process = subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            yield _wait_until_ready(process, log_path), process.pid
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(process: "subprocess.Popen[bytes]", log_path: Path) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = _LISTENING.search(log_path.read_text())
        if found:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{found[2]}/readyz").close()
                return int(found[1])
            except urllib.error.HTTPError as error:
                error.close()
        time.sleep(0.05)
    raise RuntimeError(f"the server does not start:\n{log_path.read_text()}")


def _measure(port: int, pid: int, options: argparse.Namespace) -> Figure:
    before, started = cpu_seconds(pid), time.monotonic()
    num_events = asyncio.run(_clients(port, options))
    seconds, cpu = time.monotonic() - started, cpu_seconds(pid) - before
    num_tokens = options.streams * options.tokens
    if num_events < num_tokens:
        raise RuntimeError(f"{num_events} events came for {num_tokens} tokens")
    return Figure(options.path, options.streams, num_tokens, seconds, 1000 * cpu / num_tokens)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (man 5 proc)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


async def _clients(port: int, options: argparse.Namespace) -> int:
    """Run every stream to its end: the number of events."""
    return sum(await asyncio.gather(*(_client(port, options) for _ in range(options.streams))))


async def _client(port: int, options: argparse.Namespace) -> int:
    asked = {"messages": [{"role": "user", "content": "a word and another"}]}
    prompt = asked if "chat" in options.path else {"prompt": "a word and another"}
    body = json.dumps({**prompt, "max_tokens": options.tokens, "ignore_eos": True, "stream": True}).encode()
    head = f"POST {options.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    num_events = 0
    while data := await reader.read(65536):
        num_events += data.count(b"data: {")
    writer.close()
    return num_events


if __name__ == "__main__":
    sys.exit(main())
