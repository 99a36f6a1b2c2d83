"""Mounts below a folder: finds them and takes them down, and removes trees only when none is left in them."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from hack.cluster.errors import ClusterError
from hack.cluster.packages import program


def parse_mount_points(mountinfo: str) -> list[Path]:
    """Return the mount points of a /proc/PID/mountinfo text, in mount order, with octal escapes decoded."""
    points = []
    for line in mountinfo.splitlines():
        escaped = line.split(" ")[4]
        points.append(Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), escaped)))
    return points


def mount_points() -> list[Path]:
    """Return this process's mount points, in mount order."""
    return parse_mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def mounts_below(folders: Iterable[Path]) -> list[Path]:
    """Return the mount points in or at these folders, last mounted first: the order to unmount in."""
    parents = list(folders)
    return [point for point in reversed(mount_points()) if any(point.is_relative_to(parent) for parent in parents)]


def unmount_below(folders: Iterable[Path]) -> None:
    """Unmount everything in or at these folders; lazily where something still holds a mount."""
    for point in mounts_below(folders):
        if subprocess.run([program("umount"), str(point)], capture_output=True).returncode != 0:
            subprocess.run([program("umount"), "--lazy", str(point)], capture_output=True)


def remove_tree(folder: Path) -> None:
    """Delete a folder, if it is there and nothing is mounted in it.

    Raises:
        ClusterError: something is mounted in it. A pod's volume may be a bind mount of somebody's data, and deleting
            would go through it.
    """
    left = mounts_below([folder])
    if left:
        raise ClusterError(f"still mounted: {left[0]}; unmount it, then run `down` again")
    if folder.exists():
        shutil.rmtree(folder)
