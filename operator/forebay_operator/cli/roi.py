"""`forebay roi`: what serving costs now, and what each optimization saves, by the planner's arithmetic."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay_operator.facts.errors import FactsError
from forebay_operator.roi.calculate import calculate
from forebay_operator.roi.inputs import InputError, Inputs
from forebay_operator.roi.page import page
from forebay_operator.roi.report import Report, summary, text, to_json
from forebay_operator.roi.subject import DEFAULT_ACCELERATOR, DEFAULT_MODEL, accelerator, subject, usual_price

EPILOG = """\
examples:
  forebay roi --requests-per-day 2000000 --prompt-tokens 1500 --output-tokens 300 --utilization 20 --gpus 40
  forebay roi --model meta-llama/Llama-3.3-70B-Instruct --accelerator h100-80gb --gpu-price 2.50 --gpus 32
  forebay roi --requests-per-day 500000 --html roi.html
  forebay roi --requests-per-day 500000 -o json

What is not given is an example, and the answer names it. Every estimate says what it assumes.

exit status: 0 the answer; 1 the model does not fit on this accelerator; 2 wrong input.
"""

FLAGS = {
    "--requests-per-day": "requests_per_day",
    "--prompt-tokens": "prompt_tokens",
    "--output-tokens": "output_tokens",
    "--utilization": "utilization",
    "--gpus": "gpus",
    "--target-utilization": "target_utilization",
    "--prefix-hit": "prefix_hit",
    "--acceptance": "acceptance",
}
"""Flags to fields of Inputs; the price's default depends on the accelerator."""

NAMED_WHEN_MISSING = ("--requests-per-day", "--prompt-tokens", "--output-tokens", "--utilization")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    defaults = Inputs()
    result = argparse.ArgumentParser(
        prog="forebay roi",
        description="Work out what serving a model costs now, and how much each optimization saves.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("--requests-per-day", type=_number, metavar="N", help=f"default {defaults.requests_per_day:,}")
    add("--prompt-tokens", type=_whole, metavar="N", help=f"of a usual request (default {defaults.prompt_tokens:,})")
    add("--output-tokens", type=_whole, metavar="N", help=f"of a usual answer (default {defaults.output_tokens})")
    add("--utilization", type=_number, metavar="PERCENT",
        help=f"of the time in which a GPU has work now (default {defaults.utilization})")  # fmt: skip
    add("--gpus", type=_whole, metavar="N", help="that you pay for now (default: what one request at a time needs)")
    add("--gpu-price", type=_number, metavar="USD", help="for a GPU and hour (default: the middle of the usual prices)")
    add("--model", default=DEFAULT_MODEL, metavar="MODEL",
        help=f"folder, config.json, GGUF file or well-known model (default {DEFAULT_MODEL})")  # fmt: skip
    add("--accelerator", default=DEFAULT_ACCELERATOR, metavar="NAME",
        help=f"one of `forebay plan --accelerator list` (default {DEFAULT_ACCELERATOR})")  # fmt: skip
    add("--target-utilization", type=_number, metavar="PERCENT",
        help=f"reached with continuous batching (default {defaults.target_utilization})")  # fmt: skip
    add("--prefix-hit", type=_number, metavar="PERCENT",
        help=f"of prompt tokens found in the prefix cache (default {defaults.prefix_hit})")  # fmt: skip
    add("--acceptance", type=_number, metavar="PERCENT",
        help=f"of drafted tokens that are accepted (default {defaults.acceptance})")  # fmt: skip
    add("--html", type=Path, metavar="FILE", help="write a page with sliders and a chart as well; it loads nothing")
    add("-o", "--output", default="text", choices=("text", "json"), help="default text")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command: 0 the answer, 1 the model does not fit, 2 wrong input."""
    arguments = parser().parse_args(argv)
    try:
        profile = accelerator(arguments.accelerator)
        price = usual_price(profile) if arguments.gpu_price is None else arguments.gpu_price
        inputs = Inputs(price=price, **_given(arguments))
        about = subject(arguments.model, inputs)
    except (InputError, FactsError) as error:
        sys.stderr.write(f"forebay roi: {error}\n")
        return 2
    found = about.on(profile)
    if not found:
        sys.stderr.write(
            f"forebay roi: {about.name} does not fit on one node of {profile.gpus_per_node} x {profile.name}; "
            f"`forebay plan --model {arguments.model} --accelerator {profile.name}` shows why\n"
        )
        return 1
    report = Report(about.name, profile.name, inputs, calculate(inputs, found), _missing(arguments, price))
    if arguments.html is not None:
        try:
            arguments.html.write_text(page(about, report), encoding="utf-8")
        except OSError as error:
            sys.stderr.write(f"forebay roi: --html {arguments.html}: cannot be written: {error.strerror}\n")
            return 2
    if arguments.output == "json":
        sys.stdout.write(json.dumps(to_json(report), indent=2) + "\n")
    elif arguments.html is not None:
        sys.stdout.write(f"{summary(report.result)}\nwrote {arguments.html}: open it in a browser\n")
    else:
        sys.stdout.write(text(report) + "\n")
    return 0


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The inputs that stand on the command line."""
    return {field: value for field in FLAGS.values() if (value := getattr(arguments, field)) is not None}


def _missing(arguments: argparse.Namespace, price: float) -> tuple[str, ...]:
    """Inputs that a person should have given, with the value that stands for them."""
    defaults = Inputs()
    missing = [
        f"{flag} {getattr(defaults, FLAGS[flag])}"
        for flag in NAMED_WHEN_MISSING
        if getattr(arguments, FLAGS[flag]) is None
    ]
    if arguments.gpu_price is None:
        missing.append(f"--gpu-price {price:.2f}")
    if arguments.model == DEFAULT_MODEL:
        missing.append(f"--model {DEFAULT_MODEL}")
    return tuple(missing)


def _number(argument: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{argument!r} is not a number") from None
    return int(value) if value.is_integer() else value


def _whole(argument: str) -> int:
    if not argument.isascii() or not argument.isdecimal() or len(argument) > 30:
        raise argparse.ArgumentTypeError(f"{argument!r} is not a positive whole number")
    return int(argument)


if __name__ == "__main__":
    sys.exit(main())
