"""Measure one kernel's memory bandwidth: the command line and the clock that every `bench_<kernel>.py` shares."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from forebay_kernels.cases import Case, CaseMaker
from forebay_kernels.dispatch import KERNELS, implementation, implementation_of
from forebay_kernels.shapes import MODEL_SHAPES

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Two roundings to each dtype, as in the kernels' tests.
_TOLERANCES = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2.0**-19}

_COLUMNS = (("tokens", 7), ("implementation", 16), ("MB moved", 10), ("us", 10), ("GB/s", 9), ("TFLOP/s", 9))
_HEADER = f"{'model':<14}" + "".join(f"{name:>{width}}" for name, width in _COLUMNS) + f"{'speed-up':>10}"


def main(name: str, make_case: CaseMaker, *, arguments: list[str] | None = None) -> int:
    """Run the benchmark of kernel `name` as a command; returns the exit status."""
    options = _parser(name).parse_args(arguments)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("error: argument --device: PyTorch sees no GPU on this machine; use --device cpu", file=sys.stderr)
        return 2
    dtype = DTYPES[options.dtype]
    print(f"{name} on {_describe(device)}, {options.dtype}, PyTorch {torch.__version__}; median times")
    print(_HEADER)
    for shape in MODEL_SHAPES:
        if options.model and shape.name not in options.model:
            continue
        for num_tokens in options.num_tokens:
            case = make_case(shape, num_tokens, dtype, device)
            torch_seconds = 0.0
            for label, run in _implementations(name, device):
                check(name, run, case, dtype)
                seconds = median_seconds(run, case, device, options.seconds)
                torch_seconds = torch_seconds or seconds
                print(
                    f"{shape.name:<14}{num_tokens:>7}{label:>16}{case.bytes_moved / 1e6:>10.3f}{seconds * 1e6:>10.1f}"
                    f"{case.bytes_moved / seconds / 1e9:>9.1f}{case.flops / seconds / 1e12:>9.3f}"
                    f"{torch_seconds / seconds:>9.2f}x",
                    flush=True,
                )
    return 0


def _parser(name: str) -> argparse.ArgumentParser:
    program = f"bench_{name}.py"
    parser = argparse.ArgumentParser(
        prog=program,
        description=f"Measure {name}: time and bandwidth of every implementation that the device has, after checking "
        "that each gives what the definition gives. The speed-up is over the PyTorch definition.",
        epilog=f"example:\n  python kernels/benchmarks/{program} --model llama-3-8b --num-tokens 1 64 4096",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda (ROCm too) where there is a GPU")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: %(default)s")
    names = [shape.name for shape in MODEL_SHAPES]
    parser.add_argument("--model", action="append", choices=names, help="whose sizes; repeatable; default all")
    parser.add_argument("--num-tokens", type=_positive, nargs="+", default=[1, 64, 2048], help="default: 1 64 2048")
    parser.add_argument("--seconds", type=float, default=0.2, help="time for each line; default: %(default)s")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads"


def _implementations(name: str, device: torch.device) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The definition first, then what the dispatch picks, if that is something else."""
    yield "torch", KERNELS[name].definition
    chosen = implementation_of(device)[name]
    if chosen != "torch":
        yield chosen, implementation(name, device.type)


def check(name: str, run: Callable[..., Any], case: Case, dtype: torch.dtype) -> None:
    """Raise AssertionError unless an implementation gives what the definition of kernel `name` gives."""
    expected = KERNELS[name].definition(*case.arguments)
    torch.testing.assert_close(run(*case.arguments), expected, rtol=_TOLERANCES[dtype], atol=case.tolerance)


def median_seconds(run: Callable[..., Any], case: Case, device: torch.device, seconds: float) -> float:
    """Median time of a call. On a GPU its caches are cleared before each; on a CPU small cases stay in its caches."""
    if device.type == "cuda":
        from triton.testing import do_bench

        milliseconds = do_bench(lambda: run(*case.arguments), rep=int(seconds * 1000), return_mode="median")
        return float(milliseconds) / 1000
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while not times or time.perf_counter() < deadline:
        started = time.perf_counter()
        run(*case.arguments)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
