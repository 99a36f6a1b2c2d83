"""`forebay bench kernels`: what share of the roofline each kernel reaches on the GPU at hand."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from forebay_kernels.dispatch import KERNELS
from forebay_kernels.measurement import Figure, figures, gpu_of
from forebay_kernels.roofline import GPUS
from forebay_kernels.shapes import MODEL_SHAPES

_DEFAULT_GPU = "h200-141gb"


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status: 1 when a kernel failed, 2 for a bad command line."""
    options = _parser().parse_args(argv)
    device = torch.device("cuda") if torch.cuda.is_available() else None
    name = options.device or (torch.cuda.get_device_name(device) if device is not None else _DEFAULT_GPU)
    gpu = gpu_of(name)
    if gpu is None and options.device:
        known = ", ".join(gpu.name for gpu in GPUS)
        print(f"forebay bench kernels: --device {name}: its peaks are not known; these are: {known}", file=sys.stderr)
        return 2
    where = f"measured on {torch.cuda.get_device_name(device)}" if device is not None else _NOTHING_MEASURED
    print(f"{where}; roofline of {gpu.name if gpu is not None else 'no GPU: its peaks are not known'}; bfloat16")
    print(f"{'kernel':<24}{'model':<14}{'T':>6}{'MB':>10}{'floor us':>11}{'bound by':>10}{'us':>11}{'share':>8}")
    found: list[Figure] = []
    shapes = [shape for shape in MODEL_SHAPES if shape.name in options.model]
    for figure in figures(options.kernel or list(KERNELS), shapes, options.num_tokens, gpu, device, options.seconds):
        found.append(figure)
        print(_line(figure), flush=True)
    if options.json is not None:
        document = {
            "device": None if device is None else torch.cuda.get_device_name(device),
            "measured": device is not None,
            "roofline": None if gpu is None else gpu.name,
            "torch": torch.__version__,
            "figures": [asdict(figure) for figure in found],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(figure.error for figure in found) else 0


_NOTHING_MEASURED = "nothing was measured: PyTorch sees no GPU here, so these are floors that no kernel can beat"


def _line(figure: Figure) -> str:
    if figure.error is not None:
        return f"{figure.kernel:<24}{figure.model:<14}{figure.num_tokens:>6}  FAILED: {figure.error}"
    floor = "-" if figure.floor_us is None else f"{figure.floor_us:.2f}"
    measured = "-" if figure.measured_us is None else f"{figure.measured_us:.2f}"
    share = "-" if figure.share is None else f"{figure.share:.0%}"
    return (
        f"{figure.kernel:<24}{figure.model:<14}{figure.num_tokens:>6}{figure.bytes_moved / 1e6:>10.3f}"
        f"{floor:>11}{figure.bound_by or '-':>10}{measured:>11}{share:>8}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay bench kernels",
        description="Measure every kernel on this machine's GPU, after checking that it computes what its definition "
        "says, and print the share of the roofline that it reaches. Without a GPU: the times that the roofline "
        "allows, and that nothing was measured.",
        epilog="examples:\n  forebay bench kernels --json kernels.json\n"
        "  forebay bench kernels --kernel decode_attention --num-tokens 1 64 256\n"
        "  forebay bench kernels --device l40s",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", help=f"whose roofline, such as h200; default: this machine's, else {_DEFAULT_GPU}")
    parser.add_argument("--kernel", action="append", choices=KERNELS, metavar="NAME", help="repeatable; default: all")
    names = [shape.name for shape in MODEL_SHAPES]
    parser.add_argument("--model", nargs="+", choices=names, default=["llama-3-8b"], help="whose sizes; %(default)s")
    parser.add_argument("--num-tokens", type=_positive, nargs="+", default=[1, 64, 2048], help="default: 1 64 2048")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each measurement; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
