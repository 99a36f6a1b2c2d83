"""`forebay bench serve|engine`: dispatch; each half imports only what it needs (the first one no torch)."""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import cast

_HALVES = {
    "serve": (
        "forebay_server.bench.serve_command",
        "load on any OpenAI-style endpoint: latencies, throughput, goodput",
    ),
    "engine": (
        "forebay_server.bench.engine_command",
        "the engine in this process: prefill, decode, memory, scheduling",
    ),
}
_USAGE = """usage: forebay bench serve|engine [options]

{rows}

examples:
  forebay bench serve --base-url http://localhost:8000/v1 --concurrency 8 --num-requests 100
  forebay bench engine --model ./SmolLM2-135M-Instruct --quantization int8
  forebay bench serve --help
"""


def main(argv: Sequence[str]) -> int:
    """Run one half and return its exit status; 2 for a name that does not exist."""
    usage = _USAGE.format(rows="\n".join(f"  {name:<8}{summary}" for name, (_, summary) in _HALVES.items()))
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(usage)
        return 0 if argv else 2
    if argv[0] not in _HALVES:
        sys.stderr.write(f"forebay bench: no {argv[0]!r}; one of: {', '.join(_HALVES)}\n")
        return 2
    module = importlib.import_module(_HALVES[argv[0]][0])
    run = cast(Callable[[Sequence[str]], int], module.main)
    return run(argv[1:])
