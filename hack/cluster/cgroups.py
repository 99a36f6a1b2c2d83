"""The control groups that hold every process of a cluster, on cgroup v1 and v2 alike.

Being in the group is what makes a process ours: `down` kills by it, after a crash too, when no record is left.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from hack.cluster.errors import ClusterError

SYSTEM = "system"  # our own components
PODS = "kubepods"  # the kubelet's name for its own


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup file system.

    Attributes:
        root: mount point.
        version: 1 or 2. On a hybrid machine both occur.
    """

    root: Path
    version: int


def parse_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """Return the cgroup file systems of a /proc/PID/mountinfo text."""
    hierarchies = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        kind = fields[fields.index("-") + 1]
        if kind in ("cgroup", "cgroup2"):
            hierarchies.append(Hierarchy(Path(fields[4]), 1 if kind == "cgroup" else 2))
    return hierarchies


def hierarchies() -> list[Hierarchy]:
    """Return the cgroup file systems of this machine."""
    return parse_hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def create(name: str) -> list[Path]:
    """Create the cluster's group and its `system` group in every hierarchy.

    The kubelet refuses a root group that is missing from any v1 hierarchy, `systemd` included.

    Returns:
        The `cgroup.procs` files to write a process id into, one a hierarchy.

    Raises:
        ClusterError: the machine has no cgroups, or does not let us write to them.
    """
    files = []
    for hierarchy in hierarchies():
        group = hierarchy.root / name
        try:
            _make(group, hierarchy)
            _make(group / SYSTEM, hierarchy)
        except OSError as error:
            raise ClusterError(f"cannot create the cgroup {group}: {error}") from error
        files.append(group / SYSTEM / "cgroup.procs")
    if not files:
        raise ClusterError("no cgroup file system is mounted")
    return files


def _make(group: Path, hierarchy: Hierarchy) -> None:
    group.mkdir(exist_ok=True)
    if hierarchy.version == 2:
        for controller in (group.parent / "cgroup.controllers").read_text(encoding="utf-8").split():
            # One by one, and a refusal is no failure: the kubelet names the ones that it cannot do without.
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    for setting in ("cpuset.cpus", "cpuset.mems"):  # a new v1 cpuset is empty, and takes no process until filled
        file = group / setting
        if file.exists() and not file.read_text(encoding="utf-8").strip():
            file.write_text((group.parent / setting).read_text(encoding="utf-8"))


def processes(name: str) -> set[int]:
    """Return the ids of every process in the cluster's group or below it."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        for folder, _, files in os.walk(hierarchy.root / name):
            if "cgroup.procs" in files:
                found.update(_members(Path(folder)))
    return found


def _members(group: Path) -> list[int]:
    try:
        pids = [int(line) for line in (group / "cgroup.procs").read_text(encoding="utf-8").split()]
    except OSError:  # gone since it was listed; or, on v2, a threaded group, whose parent lists its processes
        return []
    return [pid for pid in pids if pid > 0]  # 0 stands for a process that this pid namespace does not see


def kill_all(name: str, timeout_seconds: float) -> None:
    """Kill every process in the cluster's group.

    Raises:
        ClusterError: some are still there after the timeout.
    """
    deadline = time.monotonic() + timeout_seconds
    while remaining := processes(name):
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise ClusterError(f"processes do not end: {' '.join(map(str, sorted(remaining)))}")
        time.sleep(0.05)


def remove(name: str) -> None:
    """Remove the cluster's group, children first, in every hierarchy. Its processes must have ended.

    Raises:
        ClusterError: the kernel keeps a group for longer than a few seconds.
    """
    deadline = time.monotonic() + 5.0
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy.root / name, topdown=False):
            _remove_group(Path(folder), deadline)


def _remove_group(group: Path, deadline: float) -> None:
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # EBUSY for a moment after its last process died
            if time.monotonic() > deadline:
                raise ClusterError(f"cannot remove the cgroup {group}: {error}") from error
            time.sleep(0.05)
        else:
            return
