"""Prints one line a step with its elapsed time; on a terminal the line shows progress while the step runs."""

import contextlib
import time
from collections.abc import Iterator
from typing import TextIO

NAME_WIDTH = 26
RESULT_WIDTH = 22
HEARTBEAT_SECONDS = 30.0


class Step:
    """One line of output."""

    def __init__(self, name: str, out: TextIO) -> None:
        self.name = name
        self.result = "done"
        self._out = out
        self._is_terminal = out.isatty()
        self._started = time.monotonic()
        self._last_progress = self._started

    @property
    def elapsed_seconds(self) -> float:
        """Time since the step began."""
        return time.monotonic() - self._started

    def progress(self, text: str) -> None:
        """Show how far a long step is: at once on a terminal, else every half minute on a line of its own."""
        now = time.monotonic()
        if self._is_terminal:
            self._write(f"\r\033[K{self._line(text)}")
        elif now - self._last_progress >= HEARTBEAT_SECONDS:
            self._last_progress = now
            self._write(self._line(text) + "\n")

    def finish(self, result: str) -> None:
        """Print the step's last line."""
        self._write(("\r\033[K" if self._is_terminal else "") + self._line(result) + "\n")

    def _line(self, text: str) -> str:
        dots = "." * max(3, NAME_WIDTH - len(self.name))
        return f"  {self.name} {dots} {text:<{RESULT_WIDTH}} {self.elapsed_seconds:6.1f} s"

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class Console:
    """Where a command reports its steps."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Time a block and print its result, or `failed` when it raises."""
        step = Step(name, self._out)
        step.progress("...")
        finished = False
        try:
            yield step
            finished = True
        finally:
            step.finish(step.result if finished else "failed")

    def say(self, text: str = "") -> None:
        """Print a line."""
        self._out.write(text + "\n")
        self._out.flush()
