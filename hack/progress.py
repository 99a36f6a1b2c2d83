"""Shows each step of a development command on one line with its result and elapsed time; colours only on a terminal."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

NAME_WIDTH = 46
RESULT_WIDTH = 18
TICK_SECONDS = 1.0
HEARTBEAT_SECONDS = 30.0
"""Where there is no terminal, a line says this often that a step still runs."""


class Step:
    """One line of output: on a terminal rewritten every second, elsewhere written when there is something to say.

    Args:
        name: what is done.
        out: where the line goes.
    """

    def __init__(self, name: str, out: TextIO) -> None:
        self.name = name
        self.result = "done"
        self._out = out
        self._is_terminal = out.isatty()
        self._started = time.monotonic()
        self._text = "..."
        self._finished = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    @property
    def elapsed_seconds(self) -> float:
        """Time since the step began."""
        return time.monotonic() - self._started

    def progress(self, text: str) -> None:
        """Say how far a long step is; it appears with the next tick."""
        self._text = text

    def start(self) -> None:
        """Begin to show it."""
        self._ticker.start()

    def finish(self, result: str, colour: str) -> None:
        """Print the last line."""
        self._finished.set()
        self._ticker.join()
        erase = "\r\x1b[K" if self._is_terminal else ""
        self._write(erase + self._line(paint(result, colour, self._out), len(result)) + "\n")

    def _tick(self) -> None:
        while not self._finished.wait(TICK_SECONDS if self._is_terminal else HEARTBEAT_SECONDS):
            line = self._line(self._text, len(self._text))
            self._write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")

    def _line(self, result: str, width: int) -> str:
        """`width`: of the result as it is seen, without the bytes of colours."""
        dots = "." * max(3, NAME_WIDTH - len(self.name))
        return f"  {self.name} {dots} {result}{' ' * max(0, RESULT_WIDTH - width)} {self.elapsed_seconds:6.1f} s"

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class Console:
    """Where a command reports its steps.

    Args:
        out: None: the standard output of the moment.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Time a block and print its result, or `failed` when it raises."""
        step = Step(name, self._out or sys.stdout)
        step.start()
        finished = False
        try:
            yield step
            finished = True
        finally:
            step.finish(step.result if finished else "failed", "32" if finished else "31")

    def say(self, text: str = "") -> None:
        """Print a line."""
        print(text, file=self._out or sys.stdout, flush=True)


def use_colour(out: TextIO) -> bool:
    """Whether the output is a terminal and NO_COLOR is not set (https://no-color.org)."""
    return out.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, code: str, out: TextIO | None = None) -> str:
    """Wrap text in an ANSI colour when colours are on."""
    return f"\x1b[{code}m{text}\x1b[0m" if use_colour(out or sys.stdout) else text


def heading(text: str) -> None:
    """Print the name of a group of steps."""
    Console().say(paint(text, "1"))


def step(name: str) -> AbstractContextManager[Step]:
    """A step on the standard output."""
    return Console().step(name)
