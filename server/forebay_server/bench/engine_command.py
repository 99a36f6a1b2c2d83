"""`forebay bench engine`: load a model in this process and time prefill, decoding, or the serving of a mix."""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the engine process sets it, before torch is imported

import torch
from torch.profiler import ProfilerActivity, profile

from forebay_server.bench.engine_arguments import parse
from forebay_server.bench.engine_figures import EngineBench, Figure
from forebay_server.bench.lengths import SHAREGPT_OUTPUT, SHAREGPT_PROMPT, LognormalLengths
from forebay_server.bench.memory_floor import read_seconds, rss_anon_bytes, seconds_since_process_start
from forebay_server.bench.random_checkpoint import write_random_checkpoint
from forebay_server.bench.scheduling import MixedRequest, PolicyFigures, run_policy
from forebay_server.config import EngineConfig
from forebay_server.engine.device import set_threads
from forebay_server.engine.engine import Engine, EngineFacts, load_engine, warm_up
from forebay_server.engine.host_resources import available_cpus
from forebay_server.errors import ForebayError, StartupError

_PROFILED_STEPS = 10


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
class Loaded:
    """What loading cost and made."""

    model: str
    dtype: str
    quantization: str
    load_seconds: float
    first_token_seconds: float | None
    """From the start of this process to a first token, the import of torch included."""
    weight_bytes: int
    kv_cache_bytes: int
    rss_anon_bytes: int | None
    """Once loaded and warm."""


def main(argv: Sequence[str]) -> int:
    """Run `forebay bench engine` and return its exit code."""
    options = parse(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
            if options.random_weights is not None:
                config_file = Path(options.random_weights)
                options.model = str(write_random_checkpoint(config_file, Path(folder), options.seed))
            return _measure(options)
    except StartupError as error:
        sys.stderr.write(f"forebay bench engine: {error.reason}: {error.message}\n")
        return error.exit_code
    except ForebayError as error:
        sys.stderr.write(f"forebay bench engine: {error}\n")
        return 2


def _measure(options: argparse.Namespace) -> int:
    load_average = os.getloadavg()[0]
    threads = set_threads()
    longest = sum(lengths.longest for lengths in _mix_lengths(options))
    started = time.perf_counter()
    engine, facts = load_engine(_config(options, longest))
    warm_up(engine, facts)
    bench = EngineBench(engine, facts.model_config.vocab_size, options.seed)
    bench.start(1, min(32, facts.max_model_len - 2), 1)
    first_token_seconds = seconds_since_process_start()
    bench.finish()
    ready = facts.ready_message()
    loaded = Loaded(
        model=Path(options.random_weights or options.model).name,
        dtype=ready.dtype,
        quantization=options.quantization,
        load_seconds=time.perf_counter() - started,
        first_token_seconds=first_token_seconds if options.random_weights is None else None,
        weight_bytes=facts.weight_bytes,
        kv_cache_bytes=facts.layout.num_bytes,
        rss_anon_bytes=rss_anon_bytes(),
    )
    machine = Machine(
        processor=_processor(),
        cpus=available_cpus(),
        threads=threads,
        load_average=load_average,
        device=_device_name(facts.device),
        torch=torch.__version__,
        python=platform.python_version(),
    )
    if options.profile:
        _print_profile(bench, options.batch_sizes[-1], options.prompt_tokens)
        return 0
    is_text = options.output == "text"
    if is_text:
        sys.stdout.write(_heading(loaded, machine))
    result: dict[str, Any] = {"loaded": asdict(loaded), "machine": asdict(machine)}
    if options.scheduling is not None:
        mix = _mix(options, facts.model_config.vocab_size)
        result["policies"] = [asdict(found) for found in _policies(engine, options, mix, longest, is_text=is_text)]
    else:
        figures = list(_figures(bench, options, is_text=is_text))
        result["figures"] = [asdict(figure) for figure in figures]
        result["floor"] = _floor(figures, facts, options.repetitions, is_text=is_text)
    if not is_text:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


def _config(options: argparse.Namespace, longest: int) -> EngineConfig:
    """Room for the largest run, with a block to spare for each request; of the mix, for so many of its longest."""
    if options.scheduling is not None:
        num_seqs, kv_tokens = options.mix_requests, options.mix_slots * longest
    else:
        num_seqs = max(options.batch_sizes)
        decoding = num_seqs * (options.prompt_tokens + options.new_tokens + 33)
        kv_tokens = max(decoding, options.prefill_tokens + 33)
    return EngineConfig(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        max_num_seqs=num_seqs,
        kv_cache_tokens=kv_tokens,
    )


def _figures(bench: EngineBench, options: argparse.Namespace, *, is_text: bool) -> Iterator[Figure]:
    """Prefill, then decoding at each batch size; shown as they come."""
    if is_text:
        sys.stdout.write(f"\n{'':10}{'batch':>6}{'tokens':>8}{'seconds':>9}{'tokens/s':>10}{'ms a step':>11}\n")
    for number in range(len(options.batch_sizes) + 1):
        if number == 0:
            figure = bench.prefill(options.prefill_tokens, options.repetitions)
        else:
            batch_size = options.batch_sizes[number - 1]
            figure = bench.decode(batch_size, options.prompt_tokens, options.new_tokens, options.repetitions)
        if is_text:
            sys.stdout.write(
                f"{figure.name:10}{figure.batch_size:6}{figure.num_tokens:8}{figure.seconds:9.2f}"
                f"{figure.tokens_per_second:10.1f}{figure.step_milliseconds:11.2f}\n"
            )
            sys.stdout.flush()
        yield figure


def _floor(figures: Sequence[Figure], facts: EngineFacts, repetitions: int, *, is_text: bool) -> dict[str, Any] | None:
    """Hold decoding at batch 1 against a read of its weights; None without a figure for batch 1, or on a GPU."""
    alone = next((figure for figure in figures if figure.name == "decode" and figure.batch_size == 1), None)
    if alone is None or facts.device.type != "cpu":
        return None
    config = facts.model_config
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size * facts.dtype.itemsize
    num_bytes = facts.weight_bytes - looked_up  # of an embedding that is no head a step reads only a row
    seconds = read_seconds(num_bytes, 4 * repetitions)
    share = seconds * 1000 / alone.step_milliseconds
    if is_text:
        sys.stdout.write(
            f"\nfloor of a step at batch 1: {num_bytes / 1e6:.0f} MB read in {seconds * 1000:.2f} ms "
            f"({num_bytes / seconds / 1e9:.1f} GB/s); reached {share:.0%} of it\n"
        )
    return {"bytes": num_bytes, "read_seconds": seconds, "share": share}


def _mix_lengths(options: argparse.Namespace) -> tuple[LognormalLengths, LognormalLengths]:
    """Of prompts and answers of the mix."""
    return _scaled(SHAREGPT_PROMPT, options.mix_scale), _scaled(SHAREGPT_OUTPUT, options.mix_scale)


def _mix(options: argparse.Namespace, vocab_size: int) -> list[MixedRequest]:
    """The requests of the mix."""
    generator = random.Random(options.seed)
    prompts, outputs = _mix_lengths(options)
    return [
        MixedRequest(generator.choices(range(vocab_size), k=prompts.draw(generator)), outputs.draw(generator))
        for _ in range(options.mix_requests)
    ]


def _scaled(lengths: LognormalLengths, scale: float) -> LognormalLengths:
    return LognormalLengths(max(2.0, lengths.mean * scale), lengths.sigma, max(2, round(lengths.longest * scale)))


def _policies(
    engine: Engine, options: argparse.Namespace, mix: Sequence[MixedRequest], longest: int, *, is_text: bool
) -> Iterator[PolicyFigures]:
    """Serve the mix with each policy; shown as they come."""
    if is_text:
        tokens = sum(request.output_tokens for request in mix)
        slots = max(1, engine.scheduler.pool.capacity_tokens // longest)
        sys.stdout.write(
            f"\n{len(mix)} requests, {tokens:,} output tokens; room for {engine.scheduler.pool.capacity_tokens:,} "
            f"tokens: {slots} of the longest ({longest})\n\n"
            f"{'policy':12}{'tokens/s':>10}{'mean latency':>14}{'p90':>9}{'sequences':>11}{'peak':>6}{'KV waste':>10}\n"
        )
    for policy in options.scheduling:
        found = run_policy(engine, policy, mix, longest)
        if is_text and found.latency is not None:
            sys.stdout.write(
                f"{policy:12}{found.output_tokens_per_second:10.1f}"
                f"{found.latency.mean:12.1f} s{found.latency.p90:7.1f} s"
                f"{found.mean_sequences:11.1f}{found.peak_sequences:6}{found.kv_waste:10.0%}\n"
            )
            sys.stdout.flush()
        yield found


def _print_profile(bench: EngineBench, batch_size: int, prompt_tokens: int) -> None:
    """Where the time of some decode steps goes."""
    bench.start(batch_size, prompt_tokens, 2 * _PROFILED_STEPS)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(_PROFILED_STEPS):
            bench.step()
    bench.finish()
    sys.stdout.write(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25) + "\n")


def _heading(loaded: Loaded, machine: Machine) -> str:
    anonymous = "" if loaded.rss_anon_bytes is None else f", RssAnon {loaded.rss_anon_bytes / 1e6:.0f} MB"
    first = (
        "" if loaded.first_token_seconds is None else f", first token {loaded.first_token_seconds:.1f} s after start"
    )
    return (
        f"{loaded.model}: {loaded.dtype}, quantization {loaded.quantization}, loaded and warm in "
        f"{loaded.load_seconds:.1f} s{first}\n"
        f"weights {loaded.weight_bytes / 1e6:.0f} MB, KV cache {loaded.kv_cache_bytes / 1e6:.0f} MB{anonymous}\n"
        f"{machine.processor}, {machine.cpus:g} CPUs, {machine.threads} threads, load {machine.load_average:.1f}, "
        f"torch {machine.torch}\n"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
