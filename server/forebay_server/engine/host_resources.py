"""How much memory and how many CPUs this process may use: the machine's figures cut by its control groups (v1, v2)."""

import os
from collections.abc import Iterator
from pathlib import Path

from forebay_server.errors import ExitCode, StartupError

_NO_LIMIT = 1 << 60
"""Control groups v1 write a number near 2^63 where there is no limit."""


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that can still be allocated: what the machine has free, or less where a control group says so.

    Page cache counts as free, since the kernel drops it when memory is asked for.

    Args:
        root: where /proc and /sys lie; another folder in tests.
    """
    free = [_mem_available(root)]
    for folder in _groups(root, "memory"):
        limit = _read_int(folder / "memory.max") or _read_int(folder / "memory.limit_in_bytes")
        used = _read_int(folder / "memory.current") or _read_int(folder / "memory.usage_in_bytes")
        if limit is not None and limit < _NO_LIMIT and used is not None:
            free.append(max(0, limit - used + _inactive_file_bytes(folder)))
    return min(free)


def available_cpus(root: Path = Path("/")) -> float:
    """CPUs that this process may keep busy: its affinity, or less where a control group sets a quota."""
    cpus = [float(len(os.sched_getaffinity(0)))]
    for folder in _groups(root, "cpu"):
        words = _read_words(folder / "cpu.max")
        if len(words) == 2 and words[0].isdigit():
            cpus.append(int(words[0]) / int(words[1]))
        quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            cpus.append(quota / period)
    return min(cpus)


def engine_threads(cpus: float) -> int:
    """Threads for the arithmetic: every CPU on small machines, where one is too much to give away; else one is left.

    The API process needs little, and the engine process lowers its own priority, so it gets its turn.
    """
    whole = max(1, int(cpus))
    return whole if whole <= 2 else whole - 1


def _mem_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise StartupError(ExitCode.BAD_CONFIGURATION, "UnsupportedSystem", "/proc/meminfo does not tell MemAvailable")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups, from its own up to the root of the hierarchy.

    In a container the path in /proc/self/cgroup may be the host's and not exist; the walk up then meets the mount's
    root, which is the container's own group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        folder = top / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent


def _inactive_file_bytes(folder: Path) -> int:
    """Page cache of a group that the kernel would drop first."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", "0")))


def _read_int(file: Path) -> int | None:
    words = _read_words(file)
    try:
        return int(words[0]) if words else None
    except ValueError:  # `max`: no limit
        return None


def _read_words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
