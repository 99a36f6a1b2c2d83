"""Limits of control groups, old and new, read from a made-up /proc and /sys."""

from pathlib import Path

import pytest

from forebay_server.engine.host_resources import available_cpus, available_memory_bytes, engine_threads

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {
        "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n"
    }.items() | files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_machine_without_control_groups(tmp_path: Path) -> None:
    assert available_memory_bytes(write(tmp_path, {})) == 8 * GIB


def test_version_2_limit_of_the_group_and_of_its_parents(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
            "sys/fs/cgroup/pod/container/memory.current": "7\n",
        },
    )
    assert available_memory_bytes(root) == 2 * GIB


def test_version_2_in_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/burstable/pod1/abc\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{GIB}\n",
        },
    )
    assert available_memory_bytes(root) == GIB


def test_version_1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
        },
    )
    assert available_memory_bytes(root) == GIB + GIB // 2
    assert available_cpus(root) == 0.5


def test_used_up_group_has_nothing_left(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "200\n",
        },
    )
    assert available_memory_bytes(root) == 0


def test_version_2_cpu_quota(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 1000000\n"})
    assert available_cpus(root) == 0.15
    write(tmp_path, {"sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert available_cpus(root) >= 1


@pytest.mark.parametrize(("cpus", "threads"), [(0.15, 1), (1, 1), (2, 2), (2.5, 2), (4, 3), (16, 15)])
def test_threads_leave_the_api_process_a_cpu_where_there_are_several(cpus: float, threads: int) -> None:
    assert engine_threads(cpus) == threads
