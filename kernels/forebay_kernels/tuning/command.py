"""`forebay tune kernels`: measure launch options on this machine's GPU and write the table that servers then use."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from forebay_kernels.cases import case_maker
from forebay_kernels.dispatch import KERNELS, implementation
from forebay_kernels.shapes import MODEL_SHAPES
from forebay_kernels.tuning.tables import LaunchOptions, table_name, user_folder, write_table

_USAGE = """usage: forebay tune kernels [options]

examples:
  forebay tune kernels
  forebay tune kernels --kernel decode_attention --output h200.json
  forebay tune kernels --help
"""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status: 2 for a bad command line, or without a GPU."""
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return 0 if argv else 2
    if argv[0] != "kernels":
        sys.stderr.write(f"forebay tune: no {argv[0]!r}; there is: kernels\n")
        return 2
    options = _parser().parse_args(argv[1:])
    if not torch.cuda.is_available():
        sys.stderr.write("forebay tune kernels: PyTorch sees no GPU here; options can only be measured on one\n")
        return 2
    return _tune(options)


def _tune(options: argparse.Namespace) -> int:
    from forebay_kernels.gpu.launch import Launch, recorded
    from forebay_kernels.tuning.tuner import search

    device = torch.device("cuda")
    gpu_name = torch.cuda.get_device_name(device)

    def launches() -> Iterator[Launch]:
        """Each launch that the kernels make at the sizes of the models, one of a shape class."""
        seen: set[str] = set()
        for kernel in options.kernel or KERNELS:
            for shape in (shape for shape in MODEL_SHAPES if shape.name in options.model):
                for num_tokens in options.num_tokens:
                    case = case_maker(kernel)(shape, num_tokens, torch.bfloat16, device)
                    with recorded() as made:
                        implementation(kernel, device.type)(*case.arguments)
                    fresh = [launch for launch in made if launch.shape_class not in seen]
                    seen.update(launch.shape_class for launch in fresh)
                    yield from fresh

    def measure(launch: Launch) -> float | None:
        from triton.testing import do_bench

        try:
            return 1000 * float(do_bench(launch.run_as_is, rep=int(options.seconds * 1000), return_mode="median"))
        except RuntimeError:  # too many registers, too much shared memory
            return None

    table: dict[str, LaunchOptions] = {}
    for launch in launches():
        found = search(launch, measure)
        gain = f"{found.default_us / found.best_us:.2f}x, {found.best}" if found.best else "the default is best"
        print(f"{found.default_us:>10.2f} us  {gain}: {found.shape_class}", flush=True)
        if found.best is not None:
            table[found.shape_class] = found.best
    output = options.output or user_folder() / f"{table_name(gpu_name)}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    import triton

    output.write_text(write_table(gpu_name, table, {"torch": torch.__version__, "triton": triton.__version__}))
    print(f"{len(table)} shape classes have other options than the default: {output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay tune kernels",
        description="Time every kernel's launches with other numbers of warps and stages on this machine's GPU, and "
        "write what is faster as a table. Servers on such a GPU then use it; nothing is tuned while serving.",
        epilog="example:\n  forebay tune kernels --kernel prefill_attention --model llama-3-8b",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernel", action="append", choices=KERNELS, metavar="NAME", help="repeatable; default: all")
    names = [shape.name for shape in MODEL_SHAPES]
    parser.add_argument("--model", nargs="+", choices=names, default=names, help="whose sizes; default: all")
    parser.add_argument("--num-tokens", type=int, nargs="+", default=[1, 64, 2048], help="default: 1 64 2048")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each measurement; default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: the table that servers look for first")
    return parser
