"""How long the engine waited for a CPU, as the kernel tells it: a made-up kernel, and the real one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay_server.ops.cpu_wait import StepWatch, longest_wait, waits_by_thread
from forebay_server.ops.shared_state import Phase, SharedState

ENGINE, RANK = 70, 80


def put_thread(proc: Path, process: int, thread: int, waited: float, children: str = "") -> None:
    folder = proc / str(process) / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"999000000000 {int(waited * 1e9)} 12\n")
    (folder / "children").write_text(children)


def busy_state(started: float) -> SharedState:
    state = SharedState.create()
    state.set_phase(Phase.SERVING)
    for name, value in {"engine_pid": ENGINE, "num_in_engine": 1, "last_step": started}.items():
        state.put(name, value)
    return state


def test_threads_of_the_engine_and_of_its_ranks_are_seen(tmp_path: Path) -> None:
    put_thread(tmp_path, ENGINE, ENGINE, 1.5, children=f"{RANK} ")
    put_thread(tmp_path, ENGINE, 71, 0.25)
    put_thread(tmp_path, RANK, RANK, 2.0)
    put_thread(tmp_path, 90, 90, 99.0)
    assert waits_by_thread(ENGINE, tmp_path) == {ENGINE: 1.5, 71: 0.25, RANK: 2.0}


def test_what_the_kernel_does_not_tell_counts_as_no_wait(tmp_path: Path) -> None:
    assert waits_by_thread(ENGINE, tmp_path) == {}
    (tmp_path / str(ENGINE) / "task" / str(ENGINE)).mkdir(parents=True)
    assert waits_by_thread(ENGINE, tmp_path) == {}
    assert longest_wait({}, {}) == 0


def test_the_thread_that_waited_longest_counts_and_new_ones_do_not() -> None:
    assert longest_wait({1: 10.0, 2: 5.0, 3: 7.0}, {1: 11.0, 2: 9.0, 4: 100.0}) == 4.0


def test_a_step_that_takes_long_is_watched_until_it_ends(tmp_path: Path) -> None:
    state = busy_state(1000.0)
    watch = StepWatch(state, 60, tmp_path)
    put_thread(tmp_path, ENGINE, ENGINE, 300.0)
    watch.look(1005.0)
    put_thread(tmp_path, ENGINE, ENGINE, 305.0)
    watch.look(1010.0)
    assert state.get("step_cpu_wait") == 0, "of what was before, nothing counts"
    put_thread(tmp_path, ENGINE, ENGINE, 335.0)
    watch.look(1041.0)
    assert state.get("step_cpu_wait") == 30
    state.put("last_step", 1041.5)
    watch.look(1042.0)
    assert state.get("step_cpu_wait") == 0
    watch.look(1060.0)
    put_thread(tmp_path, ENGINE, ENGINE, 337.0)
    watch.look(1061.0)
    assert state.get("step_cpu_wait") == 2
    state.put("num_in_engine", 0)
    watch.look(1062.0)
    assert state.get("step_cpu_wait") == 0


@contextmanager
def spinning_on(cpu: int) -> Iterator[int]:
    """A process that computes on one CPU; its id."""
    command = f"import os; os.sched_setaffinity(0, {{{cpu}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None:
                raise ValueError("no output")
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_who_shares_a_cpu_waits_for_it_and_who_is_stopped_does_not() -> None:
    if not any(waits_by_thread(os.getpid()).values()):
        pytest.skip("this kernel does not count how long threads wait")
    cpu = min(os.sched_getaffinity(0))
    with spinning_on(cpu) as starved, spinning_on(cpu), spinning_on(cpu) as stopped:
        os.kill(stopped, signal.SIGSTOP)
        os.waitpid(stopped, os.WUNTRACED)
        before, before_of_stopped = waits_by_thread(starved), waits_by_thread(stopped)
        deadline = time.monotonic() + 60
        while longest_wait(before, waits_by_thread(starved)) < 0.1:
            assert time.monotonic() < deadline, "it shares a CPU and never waited"
        assert longest_wait(before_of_stopped, waits_by_thread(stopped)) == 0
