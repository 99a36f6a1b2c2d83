"""Show each long step of a development command on one line with its elapsed time; colours only on a terminal."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 58
HEARTBEAT_SECONDS = 30.0


def use_colour() -> bool:
    """Whether the output is a terminal and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, code: str) -> str:
    """Wrap text in an ANSI colour when colours are on."""
    return f"\x1b[{code}m{text}\x1b[0m" if use_colour() else text


def heading(text: str) -> None:
    """Print the name of a group of steps."""
    print(paint(text, "1"), flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show one step: its name while it runs, its elapsed seconds when it ends, `failed` when it raises.

    On a terminal the seconds count up in place; elsewhere a line every 30 seconds says that it still runs.
    """
    started = time.monotonic()
    finished = threading.Event()
    ticker = threading.Thread(target=_tick, args=(title, started, finished), daemon=True)
    ticker.start()
    try:
        yield
    except BaseException:
        _stop(finished, ticker)
        _print_line(title, started, paint("failed", "31"))
        raise
    _stop(finished, ticker)
    _print_line(title, started, paint("done", "32"))


def _stop(finished: threading.Event, ticker: threading.Thread) -> None:
    finished.set()
    ticker.join()


def _line(title: str, started: float, outcome: str) -> str:
    return f"  {title + ' ':.<{WIDTH}} {time.monotonic() - started:6.1f} s  {outcome}"


def _print_line(title: str, started: float, outcome: str) -> None:
    print(("\r\x1b[K" if sys.stdout.isatty() else "") + _line(title, started, outcome), flush=True)


def _tick(title: str, started: float, finished: threading.Event) -> None:
    if sys.stdout.isatty():
        while not finished.wait(1.0):
            print("\r\x1b[K" + _line(title, started, "..."), end="", flush=True)
    else:
        while not finished.wait(HEARTBEAT_SECONDS):
            print(_line(title, started, "still running"), flush=True)
