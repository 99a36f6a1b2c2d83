"""How the API process starts its children: what they are told, and that they never outlive it.

The engine process is `python -m forebay_server.engine.process --config-json JSON`, where JSON is an `EngineLaunch`;
the ops process is started likewise with an `OpsLaunch`. The API process binds both sockets, the engine connects; one
frame is one msgpack message of `forebay_server.messages`. A child calls `die_with_parent` first. The engine sends
`EngineFailed` before it ends by itself, and ends with the exit code given there.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forebay_server.config import EngineConfig

_PR_SET_PDEATHSIG = 1
NICENESS = 5
"""Of what computes: the API process goes first when both want a CPU, and answers probes and streams promptly."""


class EngineLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine process is told."""

    config: EngineConfig
    request_address: str
    """ipc:// address; the API process pushes `ToEngine` messages, the engine connects a PULL socket."""
    output_address: str
    """ipc:// address; the engine connects a PUSH socket for `ToApi` messages."""
    state_fd: int
    """Inherited descriptor of the `SharedState`."""
    parent_pid: int
    log_level: str = "info"
    plan: dict[str, object] | None = None
    """The operator's plan: how much memory may be used."""


class OpsLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ops process is told."""

    listen_fd: int
    """Inherited descriptor of the bound, listening socket of the ops port."""
    state_fd: int
    parent_pid: int
    model_name: str
    hang_timeout_seconds: float
    load_stall_timeout_seconds: float
    compile_timeout_seconds: float
    plan: dict[str, object] | None = None
    """The operator's plan, shown beside what was measured."""


def child_command(module: str, launch: EngineLaunch | OpsLaunch) -> list[str]:
    """The command line of a child."""
    return [sys.executable, "-m", module, "--config-json", msgspec.json.encode(launch).decode()]


def start_child(module: str, launch: EngineLaunch | OpsLaunch, inherited_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, so that Ctrl-C reaches only the API process, which then ends it in order.

    Must be called on the main thread: the kernel's parent-death signal is bound to the thread that forked.
    """
    return subprocess.Popen(
        child_command(module, launch), pass_fds=inherited_fds, start_new_session=True, stdin=subprocess.DEVNULL
    )


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent dies; end at once if the parent is already gone (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(f"the parent process {parent_pid} is gone")


def give_way() -> None:
    """Lower the priority of every thread of this process by `NICENESS`, once it is loaded: a start shall not wait."""
    lowered = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, int(thread.name), lowered)
