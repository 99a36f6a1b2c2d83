"""What a step costs on the host without a model: scheduler and block manager, with a runner that computes nothing.

python server/benchmarks/bench_scheduler.py
python server/benchmarks/bench_scheduler.py --num-requests 256 --prompt-tokens 1000 --profile
"""

import argparse
import cProfile
import gc
import os
import pstats
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from forebay_server.engine.block_pool import BlockPool
from forebay_server.engine.limits import SchedulerLimits
from forebay_server.engine.scheduler import Scheduler
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.messages import AddRequest, RequestOutput
from forebay_server.sampling_params import SamplingParams

BLOCK_SIZE = 16
VOCAB_SIZE = 32_000


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds of schedule and commit together."""

    median: float
    """Of the decode steps."""
    mean: float
    slowest: float
    prefill: float
    """The mean of steps that read prompts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure decode steps and the steps in which the prompts are read; print both."""
    options = _parse(arguments)
    best = min((measure(options) for _ in range(options.repetitions)), key=lambda figures: figures.median)
    print(f"{options.num_requests} running requests of {options.prompt_tokens} tokens, load {os.getloadavg()[0]:.1f}")
    print(f"decode:  {best.median:.3f} ms a step, mean {best.mean:.3f}, slowest {best.slowest:.3f}")
    print(f"prefill: {best.prefill:.3f} ms a step of {options.max_num_batched_tokens} tokens")
    if options.profile:
        _print_profile(options)
    return 0


def measure(options: argparse.Namespace) -> Figures:
    """Read every prompt, then decode."""
    scheduler = _filled(options)
    prefill = _read_prompts(scheduler, options.num_requests)
    gc.collect()
    gc.freeze()  # as the engine does after loading
    decode = [1e3 * step(scheduler)[0] for _ in range(options.steps)]
    gc.unfreeze()
    return Figures(statistics.median(decode), statistics.mean(decode), max(decode), 1e3 * statistics.mean(prefill))


def _read_prompts(scheduler: Scheduler, num_requests: int) -> list[float]:
    """Step until each request has its first token; the seconds of each step."""
    seconds, started = [], set[str]()
    while len(started) < num_requests:
        taken, outputs = step(scheduler)
        seconds.append(taken)
        started |= {output.request_id for output in outputs}
    return seconds


def step(scheduler: Scheduler) -> tuple[float, list[RequestOutput]]:
    """One step; the seconds that scheduling and committing took, without those of the runner that does nothing."""
    started = time.perf_counter()
    scheduled = scheduler.schedule()
    between = time.perf_counter()
    sampled = _no_op_run(scheduled)
    again = time.perf_counter()
    outputs = scheduler.commit(scheduled.step_id, sampled)
    return between - started + time.perf_counter() - again, outputs


def _no_op_run(scheduled: SchedulerOutput) -> dict[str, SampledToken]:
    return {request.request_id: SampledToken(7) for request in scheduled.requests if request.is_sampled}


def _filled(options: argparse.Namespace) -> Scheduler:
    """A scheduler with every request queued, and room for all of them to the end."""
    num_tokens = options.prompt_tokens + options.steps + 64
    num_blocks = options.num_requests * (num_tokens // BLOCK_SIZE + 2)
    limits = SchedulerLimits(
        max_num_seqs=options.num_requests,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=num_tokens + 1_000_000,
        vocab_size=VOCAB_SIZE,
    )
    scheduler = Scheduler(limits, BlockPool(num_blocks, BLOCK_SIZE))
    sampling = SamplingParams(max_tokens=1_000_000, ignore_eos=True)
    source = random.Random(0)
    for index in range(options.num_requests):
        # lengths differ by up to a block, so that the steps in which requests need a new block are spread
        length = options.prompt_tokens + source.randrange(BLOCK_SIZE)
        prompt = [source.randrange(VOCAB_SIZE) for _ in range(length)]
        scheduler.add(AddRequest(request_id=f"{index:016x}-0", prompt_token_ids=prompt, sampling=sampling))
    return scheduler


def _print_profile(options: argparse.Namespace) -> None:
    scheduler = _filled(options)
    _read_prompts(scheduler, options.num_requests)
    with cProfile.Profile() as profile:
        for _ in range(options.steps):
            step(scheduler)
    pstats.Stats(profile).sort_stats("tottime").print_stats(20)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-requests", type=int, default=256)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200, help="decode steps that are timed")
    parser.add_argument("--repetitions", type=int, default=3, help="the best one counts")
    parser.add_argument("--profile", action="store_true", help="show where decode steps go")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
