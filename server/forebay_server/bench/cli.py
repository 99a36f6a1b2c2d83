"""`forebay bench serve|engine|kernels`: dispatch; each imports only what it needs (the first one no torch)."""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import cast

_SUBJECTS = {
    "serve": (
        "forebay_server.bench.serve_command",
        "load on any OpenAI-style endpoint: latencies, throughput, goodput",
    ),
    "engine": (
        "forebay_server.bench.engine_command",
        "the engine in this process: prefill, decode, memory, scheduling",
    ),
    "kernels": (
        "forebay_kernels.bench_command",
        "each kernel on this GPU beside its roofline; without a GPU the roofline alone",
    ),
}
_USAGE = """usage: forebay bench serve|engine|kernels [options]

{rows}

examples:
  forebay bench serve --base-url http://localhost:8000/v1 --concurrency 8 --num-requests 100
  forebay bench engine --model ./SmolLM2-135M-Instruct --quantization int8
  forebay bench kernels --device h200
  forebay bench serve --help
"""


def main(argv: Sequence[str]) -> int:
    """Run one of them and return its exit status; 2 for a name that does not exist."""
    usage = _USAGE.format(rows="\n".join(f"  {name:<9}{summary}" for name, (_, summary) in _SUBJECTS.items()))
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(usage)
        return 0 if argv else 2
    if argv[0] not in _SUBJECTS:
        sys.stderr.write(f"forebay bench: no {argv[0]!r}; one of: {', '.join(_SUBJECTS)}\n")
        return 2
    module = importlib.import_module(_SUBJECTS[argv[0]][0])
    run = cast(Callable[[Sequence[str]], int], module.main)
    return run(argv[1:])
