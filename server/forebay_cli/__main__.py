"""Dispatch `forebay SUBCOMMAND ...`; each product keeps its own parser and its own dependencies.

The subcommands are looked up by name and imported late, so that `forebay plan` answers without torch
and the operator's image needs no server packages (and the other way round).
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One subcommand: the module whose `main(argv) -> exit status` runs it, and how to install it."""

    module: str
    extra: str
    summary: str


SUBCOMMANDS = {
    "serve": Subcommand("forebay_server.cli", "server", "serve a model behind an OpenAI-style endpoint"),
    "bench": Subcommand("forebay_server.bench.cli", "server,bench", "measure an endpoint, or the engine by itself"),
    "eval": Subcommand("forebay_server.evaluation.cli", "server,bench", "tell how much quantization changes a model"),
    "quantize": Subcommand("forebay_server.quantize.cli", "server", "write a model as a quantized checkpoint"),
    "tune": Subcommand("forebay_kernels.tuning.command", "server", "measure kernels' launch options on a GPU"),
    "plan": Subcommand("forebay_operator.cli.plan", "operator", "work out parallelism, quantization and KV cache"),
    "roi": Subcommand("forebay_operator.cli.roi", "operator", "work out what serving costs, and what would lower it"),
    "inspect": Subcommand("forebay_operator.cli.inspect", "operator", "print the facts of a model as JSON"),
    "operator": Subcommand("forebay_operator.cli.run", "operator", "run the Kubernetes operator"),
    "crds": Subcommand("forebay_operator.cli.crds", "operator", "print the custom resource definitions"),
}


def usage() -> str:
    """The text of `forebay --help`."""
    width = max(len(name) for name in SUBCOMMANDS)
    rows = "\n".join(f"  {name:<{width}}  {sub.summary}" for name, sub in SUBCOMMANDS.items())
    return (
        "usage: forebay SUBCOMMAND [options]\n\n"
        f"{rows}\n\n"
        "examples:\n"
        "  forebay plan --help\n"
        "  forebay serve --model ./SmolLM2-135M-Instruct --device cpu\n"
        "  forebay plan -f inferenceservice.yaml\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status; 2 for a name that does not exist."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version  # takes a moment, which no start of a server shall wait for

        sys.stdout.write(f"forebay {version('forebay')}\n")
        return 0
    name, rest = arguments[0], arguments[1:]
    subcommand = SUBCOMMANDS.get(name)
    if subcommand is None:
        sys.stderr.write(f"forebay: no subcommand {name!r}; one of: {', '.join(SUBCOMMANDS)}\n")
        return 2
    try:
        module = importlib.import_module(subcommand.module)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("forebay"):
            raise
        sys.stderr.write(
            f"forebay {name}: the package {missing.name!r} is not installed; "
            f"install it with: pip install 'forebay[{subcommand.extra}]'\n"
        )
        return 2
    run = cast(Callable[[Sequence[str]], int], module.main)
    return run(rest)


if __name__ == "__main__":
    sys.exit(main())
