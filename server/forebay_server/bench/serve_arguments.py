"""The command line of `forebay bench serve`."""

import argparse
import os
from collections.abc import Callable, Sequence

from forebay_server.bench.lengths import SHAREGPT_OUTPUT, SHAREGPT_PROMPT, Lengths, LognormalLengths, parse_lengths
from forebay_server.bench.slo import Objectives, parse_objectives

DEFAULT_REQUESTS = 100
_EXAMPLES = """
examples:
  forebay bench serve --base-url http://localhost:8000/v1 --concurrency 8
  forebay bench serve --rate 2 --duration 60 --prompt-tokens sharegpt --output-tokens sharegpt --slo ttft=500ms,itl=50ms
  forebay bench serve --burst-size 20 --burst-interval 10 --num-requests 100 --png bursts.png
  forebay bench serve --endpoint completions --prompts prompts.jsonl --output-tokens 64 --ignore-eos -o json

lengths: 256 (fixed), 100-400 (uniform), lognormal:MEAN,SIGMA,MAX, or sharegpt (as chats are)
objectives (--slo): ttft, itl (a request's mean), gap (its longest), tpot, e2e; a request is good when it meets them all

exit codes: 0 every request was answered; 1 some failed; 2 bad command line or prompt file; 3 nobody answers;
  130 interrupted (what was measured is shown)
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read and check a command line.

    Raises:
        SystemExit: 2, after saying what is wrong.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.num_requests is None and options.duration is None:
        options.num_requests = DEFAULT_REQUESTS
    if options.concurrency is None and options.rate is None and options.burst_size is None:
        options.concurrency = 1
    if options.concurrency is not None and options.max_concurrency is not None:
        parser.error("--max-concurrency is for --rate and --burst-size; --concurrency says it already")
    if options.prompts is not None and options.shared_prefix_tokens:
        parser.error("--shared-prefix-tokens is for random prompts; leave out --prompts")
    if options.endpoint == "chat" and options.prompt_form == "ids":
        parser.error("--prompt-form ids needs --endpoint completions: chats take text")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay bench serve",
        description="Put load on an OpenAI-style endpoint and tell how it answers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = parser.add_argument_group("endpoint")
    where.add_argument("--base-url", default="http://localhost:8000/v1", help="with /v1 (default: %(default)s)")
    where.add_argument("--model", help="its name there (default: the first that the endpoint lists)")
    where.add_argument(
        "--endpoint", choices=["completions", "chat"], default="completions", help="default: %(default)s"
    )
    where.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY"),
        help="sent as a bearer token (default: $OPENAI_API_KEY)",
    )

    load = parser.add_argument_group("load")
    arrivals = load.add_mutually_exclusive_group()
    arrivals.add_argument("--concurrency", type=_whole(1), help="closed loop of so many clients (default: 1)")
    arrivals.add_argument("--rate", type=_positive, help="open loop: Poisson arrivals, so many a second")
    arrivals.add_argument("--burst-size", type=_whole(1), help="open loop: so many requests at once")
    load.add_argument("--burst-interval", type=_positive, default=10.0, help="seconds between bursts (default: 10)")
    load.add_argument("--max-concurrency", type=_whole(1), help="of an open loop (default: none)")
    load.add_argument("--num-requests", type=_whole(1), help=f"default: {DEFAULT_REQUESTS}, or by --duration")
    load.add_argument("--duration", type=_positive, help="seconds in which requests are sent")
    load.add_argument("--warmup", type=_whole(0), default=1, help="requests before, not counted (default: 1)")

    prompts = parser.add_argument_group("requests")
    prompts.add_argument(
        "--prompt-tokens", type=_lengths(SHAREGPT_PROMPT), default="256", metavar="LENGTHS", help="default: 256"
    )
    prompts.add_argument(
        "--output-tokens", type=_lengths(SHAREGPT_OUTPUT), default="64", metavar="LENGTHS", help="default: 64"
    )
    prompts.add_argument("--prompts", metavar="FILE", help="a .jsonl file instead of random prompts")
    prompts.add_argument("--ignore-eos", action="store_true", help="ask for answers of full length (an extension)")
    prompts.add_argument("--shared-prefix-tokens", type=_whole(0), default=0, help="that prompts begin with")
    prompts.add_argument("--shared-prefixes", type=_whole(1), default=1, help="how many different ones (default: 1)")
    prompts.add_argument(
        "--prompt-form",
        choices=["auto", "ids", "text"],
        default="auto",
        help="random token ids, or words; auto: ids where the endpoint takes them (default: auto)",
    )
    prompts.add_argument("--vocab-size", type=_whole(2), default=32_000, help="ids are below this (default: 32000)")
    prompts.add_argument("--seed", type=_whole(0), default=0, help="of prompts and arrivals (default: 0)")

    times = parser.add_argument_group("limits, in seconds")
    times.add_argument("--connect-timeout", type=_positive, default=5.0, help="default: 5")
    times.add_argument("--idle-timeout", type=_positive, default=60.0, help="without a byte (default: 60)")
    times.add_argument("--request-timeout", type=_positive, default=600.0, help="of a whole request (default: 600)")

    shown = parser.add_argument_group("result")
    shown.add_argument(
        "--slo", type=_objectives, metavar="KEY=TIME,...", help="for goodput, such as ttft=500ms,itl=50ms"
    )
    shown.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default: %(default)s")
    shown.add_argument("--png", metavar="FILE", help="write a picture there")
    shown.add_argument("--requests-file", metavar="FILE", help="write every request there, a JSON object a line")
    return parser


def _lengths(sharegpt: LognormalLengths) -> Callable[[str], Lengths]:
    def convert(text: str) -> Lengths:
        try:
            return parse_lengths(text, sharegpt)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _objectives(text: str) -> tuple[str, Objectives]:
    try:
        return text, parse_objectives(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole(lowest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, {lowest} or more")
        return int(text)

    return convert


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value
