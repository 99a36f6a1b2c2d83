"""What is read from the kernel and from programs: mounts, cgroups, process states, Go's version."""

from pathlib import Path

import pytest

from hack.cluster.cgroups import Hierarchy, parse_hierarchies
from hack.cluster.mounts import parse_mount_points
from hack.cluster.processes import parse_stat
from hack.cluster.toolchain import parse_version

MOUNTINFO = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 22 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
40 22 0:30 / /run/with\040space rw - tmpfs tmpfs rw
"""


def test_mount_points_keep_their_order_and_lose_their_escapes() -> None:
    assert parse_mount_points(MOUNTINFO)[-2:] == [Path("/sys/fs/cgroup/unified"), Path("/run/with space")]


def test_cgroup_hierarchies_of_both_versions_are_found() -> None:
    assert parse_hierarchies(MOUNTINFO) == [
        Hierarchy(Path("/sys/fs/cgroup/memory"), 1),
        Hierarchy(Path("/sys/fs/cgroup/unified"), 2),
    ]


def test_a_process_name_with_brackets_does_not_shift_the_fields() -> None:
    fields = ["S", *map(str, range(4, 22)), "98765", "0", "0"]
    assert parse_stat(f"17 (a) b (c)) {' '.join(fields)}") == ("S", 98765)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64\n", (1, 26)),
        ("go version go1.24rc1 linux/amd64\n", (1, 24)),
        ("go version devel +abc linux/amd64\n", None),
        ("", None),
    ],
)
def test_the_go_version_is_read(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version
