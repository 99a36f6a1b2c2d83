"""The side of a measured engine: reads jobs as JSON lines on stdin, answers on stdout. Standard library only.

First line in: a `Setup` as JSON. Answer: `{"ready": {"version", "details"}}`. Then, for each line
`{"prompts": [[token id]], "output_tokens": n}`, all prompts are generated together and the answer is
`{"seconds": s, "output_tokens": total}`. An end of stdin ends the process.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine is started with."""

    model: str
    """In the engine's own format."""
    threads: int
    max_streams: int
    max_tokens: int
    """Of one stream: prompt and output."""
    options: dict[str, str]
    """Of this engine alone."""


class PeerEngine(Protocol):
    """An engine that is loaded and can be timed."""

    version: str
    details: str
    """Weight format and settings, for the reader of the table."""

    def generate(self, prompts: list[list[int]], output_tokens: int) -> int:
        """Generate greedily, past any end-of-sequence token; returns how many tokens came in all."""
        ...


def run(load: Callable[[Setup], PeerEngine]) -> None:
    """Serve jobs until stdin ends. Whatever else prints to stdout lands on stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")

    engine = load(Setup(**json.loads(sys.stdin.readline())))
    answer({"ready": {"version": engine.version, "details": engine.details}})
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        num_tokens = engine.generate(job["prompts"], job["output_tokens"])
        answer({"seconds": time.perf_counter() - started, "output_tokens": num_tokens})
