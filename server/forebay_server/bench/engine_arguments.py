"""The command line of `forebay bench engine`."""

import argparse
from collections.abc import Callable, Sequence
from typing import get_args

from forebay_server.config import Device, Dtype, KVCacheDtype, Quantization

POLICIES = ("static", "contiguous", "paged")
_EXAMPLES = """
examples:
  forebay bench engine --model ./SmolLM2-135M-Instruct.gguf
  forebay bench engine --model ./model --quantization int8 --batch-sizes 1 4 16 --prompt-tokens 256 -o json
  forebay bench engine --random-weights llama-1b.json --quantization int8
  forebay bench engine --model ./model --scheduling
  forebay bench engine --model ./model --profile

The share of the floor holds decoding at batch 1 against a plain read of as many bytes as the weights have, by the same
threads in the same run. With --scheduling a mix of lengths as chats have them is served three ways: static batches,
continuous batching with contiguous reservation, and as the engine does it (continuous, paged).

exit codes: 0 measured; 2 bad command line; others as of forebay serve
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line.

    Raises:
        SystemExit: 2, after saying what is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="forebay bench engine",
        description="How fast the engine is by itself: no API, no second process.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    model = parser.add_argument_group("model").add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="a GGUF file or a folder, as for forebay serve")
    model.add_argument("--random-weights", metavar="CONFIG.json", help="random weights for this config.json instead")

    how = parser.add_argument_group("engine")
    how.add_argument("--device", choices=get_args(Device), default="auto", help="default: auto")
    how.add_argument("--dtype", choices=get_args(Dtype), default="auto", help="default: auto")
    how.add_argument("--quantization", choices=get_args(Quantization), default="auto", help="default: auto")
    how.add_argument("--kv-cache-dtype", choices=get_args(KVCacheDtype), default="auto", help="default: auto")

    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--batch-sizes", type=_whole(1), nargs="+", default=[1, 16], metavar="N", help="of decoding (default: 1 16)"
    )
    what.add_argument(
        "--prefill-tokens", type=_whole(1), default=512, help="of the prompt that is timed (default: 512)"
    )
    what.add_argument("--prompt-tokens", type=_whole(1), default=256, help="before decoding (default: 256)")
    what.add_argument("--new-tokens", type=_whole(1), default=64, help="that each request decodes (default: 64)")
    what.add_argument("--repetitions", type=_whole(1), default=3, help="the best one counts (default: 3)")
    what.add_argument("--seed", type=_whole(0), default=0, help="of prompts and random weights (default: 0)")
    what.add_argument("--profile", action="store_true", help="where decode steps of the last batch size go, instead")
    what.add_argument(
        "--scheduling",
        nargs="*",
        choices=POLICIES,
        metavar="POLICY",
        help=f"serve a mix of lengths with these policies, instead (default: all of {', '.join(POLICIES)})",
    )
    what.add_argument("--mix-requests", type=_whole(1), default=48, help="requests of the mix (default: 48)")
    what.add_argument(
        "--mix-scale", type=_share, default=0.25, help="its lengths, as a part of ShareGPT's (default: 0.25)"
    )
    what.add_argument("--mix-slots", type=_whole(1), default=4, help="longest requests that fit the cache (default: 4)")

    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default: text")
    options = parser.parse_args(argv)
    if options.scheduling is not None and not options.scheduling:
        options.scheduling = list(POLICIES)
    return options


def _whole(lowest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, {lowest} or more")
        return int(text)

    return convert


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 4:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, 4 at most")
    return value
