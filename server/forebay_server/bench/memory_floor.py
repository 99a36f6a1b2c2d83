"""The least time that a decode step of one request can take: reading every weight once, by the same threads."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch


def read_seconds(num_bytes: int, repetitions: int) -> float:
    """How long this process's threads take to read a buffer of so many bytes: the best of several ways and tries.

    A sum of whole numbers and a product of a matrix and a vector both read every byte once and compute next to nothing;
    which of them the memory limits sooner differs between processors, so the faster one is the floor.
    """
    num_rows = max(1, num_bytes // 8192)
    buffer = torch.ones(num_rows * 4096, dtype=torch.bfloat16)  # pages are touched: untouched ones need no reading
    whole, matrix = buffer.view(torch.int64), buffer.view(num_rows, 4096)
    vector = torch.ones(4096, dtype=torch.bfloat16)
    ways: list[Callable[[], torch.Tensor]] = [lambda: whole.sum(), lambda: torch.mv(matrix, vector)]
    seconds = []
    for _ in range(repetitions):
        for read in ways:
            started = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - started)
    return min(seconds) * num_bytes / (num_rows * 8192)


def rss_anon_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Resident memory of this process that no file backs; None where the system does not tell."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None


def seconds_since_process_start(root: Path = Path("/proc")) -> float | None:
    """How long this process lives; None where the system does not tell. Exact to 10 ms."""
    try:
        fields = (root / "self/stat").read_text().rpartition(")")[2].split()
        uptime = float((root / "uptime").read_text().split()[0])
    except OSError:
        return None
    ticks = int(fields[19])  # starttime, field 22 of proc(5)
    return uptime - ticks / os.sysconf("SC_CLK_TCK")
