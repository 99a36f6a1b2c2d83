"""File locks between processes; the kernel drops them when their holder dies."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, waiting for whoever has it.

    Args:
        path: created when missing, with its folder, and never removed: removing a lock file that another waits on
            would let two in.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
