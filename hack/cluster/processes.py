"""Starts, finds and stops the long-running processes of a cluster; each has a record file that names it for sure."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hack.cluster.errors import ComponentError
from hack.cluster.health import Check
from hack.cluster.packages import SEARCH_PATH

# Puts itself into each group before it becomes the program, so that no child is born outside.
_LAUNCHER = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 70; shift; done; shift; cd /; exec "$@"'


@dataclass(frozen=True, slots=True)
class Component:
    """What one process is; nothing in here changes while it runs.

    Attributes:
        name: also the name of its log.
        command: program and arguments.
        check: how it shows that it works.
        files: configuration whose content the process reads once: a change means a restart.
        timeout_seconds: how long it may take until it works.
    """

    name: str
    command: tuple[str, ...]
    check: Check
    files: tuple[Path, ...] = ()
    timeout_seconds: float = 60.0

    def fingerprint(self) -> str:
        """Return a hash of the command and its configuration files."""
        digest = hashlib.sha256("\0".join(self.command).encode())
        for file in self.files:
            digest.update(file.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Record:
    """A started process.

    Attributes:
        pid: process id.
        start_ticks: the kernel's start time of that process: tells it from a later one with the same id.
        fingerprint: of the component that it was started as.
        started_at: seconds since the epoch.
    """

    pid: int
    start_ticks: int
    fingerprint: str
    started_at: float


def parse_stat(text: str) -> tuple[str, int]:
    """Return (state letter, start time in ticks) of a /proc/PID/stat line; the program's name may hold anything."""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def _start_ticks(pid: int) -> int | None:
    """Return a live process's start time, or None: a zombie has ended too."""
    try:
        state, ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else ticks


def find(run_folder: Path, name: str) -> Record | None:
    """Return the record of a component that is alive, or None."""
    file = run_folder / f"{name}.json"
    if not file.exists():
        return None
    record = Record(**json.loads(file.read_text(encoding="utf-8")))
    return record if _start_ticks(record.pid) == record.start_ticks else None


def start(component: Component, run_folder: Path, log: Path, enter: Sequence[str], groups: Sequence[Path]) -> Record:
    """Start a component in a session of its own, with its output in its log, and record it.

    Args:
        component: what to start.
        run_folder: where records are kept.
        log: appended to.
        enter: words before the command that put it into the network namespace.
        groups: the `cgroup.procs` files to join.
    """
    command = ["/bin/sh", "-c", _LAUNCHER, "sh", *map(str, groups), "--", *enter, *component.command]
    # A clean environment: a proxy setting of the user's would lead containerd and kubelet away from the node.
    environment = {"PATH": SEARCH_PATH, "HOME": "/root", "LANG": "C.UTF-8"}
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # Not subprocess.Popen, which stands for a child that somebody will wait for: this one outlives us.
    pid = os.posix_spawn(command[0], command, environment, file_actions=files, setsid=True)
    ticks = _start_ticks(pid)
    record = Record(pid, -1 if ticks is None else ticks, component.fingerprint(), time.time())
    (run_folder / f"{component.name}.json").write_text(json.dumps(asdict(record)), encoding="utf-8")
    return record


def wait_until_healthy(component: Component, record: Record, log: Path) -> None:
    """Wait until a component's check passes.

    Raises:
        ComponentError: it ended, or its time was over.
    """
    deadline = time.monotonic() + component.timeout_seconds
    while (problem := component.check.problem()) is not None:
        if _start_ticks(record.pid) != record.start_ticks:
            raise ComponentError(component.name, "ended right after its start", log)
        if time.monotonic() > deadline:
            raise ComponentError(component.name, f"not ready after {component.timeout_seconds:.0f} s: {problem}", log)
        time.sleep(0.1)


def works_within(component: Component, timeout_seconds: float) -> bool:
    """Tell whether a component's check passes, at once or before the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while component.check.problem() is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def stop(run_folder: Path, name: str, timeout_seconds: float = 5.0) -> bool:
    """End a component: SIGTERM, then SIGKILL after the timeout; remove its record.

    Returns:
        True when it was running.
    """
    record = find(run_folder, name)
    if record is not None:
        deadline = time.monotonic() + timeout_seconds
        sent = signal.SIGTERM
        _signal(record.pid, sent)
        while _start_ticks(record.pid) == record.start_ticks:
            if sent != signal.SIGKILL and time.monotonic() > deadline:
                sent = signal.SIGKILL
                _signal(record.pid, sent)
            time.sleep(0.02)
    (run_folder / f"{name}.json").unlink(missing_ok=True)
    return record is not None


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # ended in between
