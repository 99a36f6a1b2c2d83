"""How fast the engine is by itself, without API: prefill and decode tokens a second, on a stated machine.

python server/benchmarks/bench_engine.py --model model.gguf
python server/benchmarks/bench_engine.py --model model.gguf --dtype float32 --batch-sizes 1 16 50 --json result.json
python server/benchmarks/bench_engine.py --model model.gguf --profile
"""

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the engine process sets it, before torch is imported

import torch
from torch.profiler import ProfilerActivity, profile

from forebay_server.config import EngineConfig
from forebay_server.engine.device import set_threads
from forebay_server.engine.engine import Engine, EngineFacts, load_engine, warm_up
from forebay_server.engine.host_resources import available_cpus
from forebay_server.errors import StartupError
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams

SEED = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the figures were taken."""

    processor: str
    cpus: float
    threads: int
    load_average: float
    """Of the minute before the run; above the number of CPUs the figures are worth little."""
    device: str
    torch: str
    python: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement; the best of its repetitions."""

    name: str
    batch_size: int
    num_tokens: int
    seconds: float
    tokens_per_second: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and write JSON when asked."""
    options = _parse(arguments)
    machine_load = os.getloadavg()[0]
    threads = set_threads()
    config = EngineConfig(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        max_num_seqs=max(options.batch_sizes),
        kv_cache_tokens=_tokens_needed(options),
    )
    started = time.perf_counter()
    try:
        engine, facts = load_engine(config)
        warm_up(engine, facts)
    except StartupError as error:
        print(f"{error.reason}: {error.message}", file=sys.stderr)
        return error.exit_code
    load_seconds = time.perf_counter() - started
    bench = Bench(engine, facts)
    if options.profile:
        bench.print_profile(options.batch_sizes[-1], options.prompt_tokens)
        return 0
    machine = Machine(
        processor=_processor(),
        cpus=available_cpus(),
        threads=threads,
        load_average=machine_load,
        device=_device_name(facts.device),
        torch=torch.__version__,
        python=platform.python_version(),
    )
    print(
        f"{options.model}: {facts.ready_message().dtype} on {machine.device}, loaded and warm in {load_seconds:.1f} s"
    )
    print(
        f"{machine.processor}, {machine.cpus:g} CPUs, {threads} threads, load {machine_load:.1f}, torch {machine.torch}"
    )
    print(f"\n{'':10}{'batch':>6}{'tokens':>8}{'seconds':>9}{'tokens/s':>10}")
    figures = []
    for figure in bench.figures(options):
        figures.append(figure)
        print(
            f"{figure.name:10}{figure.batch_size:6}{figure.num_tokens:8}{figure.seconds:9.2f}"
            f"{figure.tokens_per_second:10.1f}",
            flush=True,
        )
    if options.json:
        result = {
            "model": Path(options.model).name,
            "dtype": facts.ready_message().dtype,
            "load_seconds": load_seconds,
            "machine": asdict(machine),
            "figures": [asdict(figure) for figure in figures],
        }
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


class Bench:
    """Runs generations on one engine and times their steps."""

    def __init__(self, engine: Engine, facts: EngineFacts) -> None:
        self._engine = engine
        self._facts = facts
        self._random = random.Random(SEED)
        self._num_requests = 0

    def figures(self, options: argparse.Namespace) -> Iterator[Figure]:
        """Prefill, then decode at each batch size; measured as they are asked for."""
        yield self.prefill(options.prefill_tokens, options.repetitions)
        for batch_size in options.batch_sizes:
            yield self.decode(batch_size, options.prompt_tokens, options.new_tokens, options.repetitions)

    def prefill(self, prompt_tokens: int, repetitions: int) -> Figure:
        """Tokens a second while a prompt is read, in chunks of the step's budget."""
        seconds = min(self._time_prefill(prompt_tokens) for _ in range(repetitions))
        return Figure("prefill", 1, prompt_tokens, seconds, prompt_tokens / seconds)

    def decode(self, batch_size: int, prompt_tokens: int, new_tokens: int, repetitions: int) -> Figure:
        """Tokens a second of all requests together, once every prompt has been read."""
        seconds = min(self._time_decode(batch_size, prompt_tokens, new_tokens) for _ in range(repetitions))
        num_tokens = batch_size * new_tokens
        return Figure("decode", batch_size, num_tokens, seconds, num_tokens / seconds)

    def print_profile(self, batch_size: int, prompt_tokens: int) -> None:
        """Where the time of 10 decode steps goes."""
        self._start(batch_size, prompt_tokens, 20)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(10):
                self._engine.step()
        self._finish()
        print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))

    def _time_prefill(self, prompt_tokens: int) -> float:
        started = time.perf_counter()
        self._start(1, prompt_tokens, 1)
        self._finish()
        return time.perf_counter() - started

    def _time_decode(self, batch_size: int, prompt_tokens: int, new_tokens: int) -> float:
        self._start(batch_size, prompt_tokens, new_tokens + 1)
        started = time.perf_counter()
        self._finish()
        return time.perf_counter() - started

    def _start(self, batch_size: int, prompt_tokens: int, new_tokens: int) -> None:
        """Queue random prompts and step until each has its first token."""
        self._engine.scheduler.reset_prefix_cache()
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0, ignore_eos=True)
        waiting = set()
        for _ in range(batch_size):
            self._num_requests += 1
            request_id = f"bench-{self._num_requests}"
            prompt = [self._random.randrange(self._facts.model_config.vocab_size) for _ in range(prompt_tokens)]
            self._engine.add(AddRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling))
            waiting.add(request_id)
        while waiting:
            waiting -= {output.request_id for output in self._engine.step()}

    def _finish(self) -> None:
        while self._engine.has_work:
            self._engine.step()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a GGUF file or a folder")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16], metavar="N", help="default: 1 16")
    parser.add_argument("--prefill-tokens", type=int, default=512, help="length of the prompt that is timed")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="length of the prompts before decoding")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens that each request decodes")
    parser.add_argument("--repetitions", type=int, default=3, help="the best one counts")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--profile", action="store_true", help="show where decode steps of the last batch size go")
    return parser.parse_args(arguments)


def _tokens_needed(options: argparse.Namespace) -> int:
    """KV slots for the largest run, with a block of room for each request."""
    decoding = max(options.batch_sizes) * (options.prompt_tokens + options.new_tokens + 17)
    return int(max(decoding, options.prefill_tokens + 17))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    sys.exit(main())
