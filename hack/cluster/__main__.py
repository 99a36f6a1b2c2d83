"""The command line: `python3 -m hack.cluster up|down|status|logs`, run from the repository's root."""

import argparse
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from hack.cluster import locks, processes
from hack.cluster.components import NAMES
from hack.cluster.down import down
from hack.cluster.errors import ClusterError, ComponentError
from hack.cluster.paths import Paths
from hack.cluster.up import check_machine, up
from hack.progress import Console

_CHECKOUT = Path(__file__).parents[2]
_FAILURE_LINES = 20

_DESCRIPTION = """\
A real one-node Kubernetes on this machine, for developers and CI. Not for production: one node, no backups,
keys in your cache folder. Needs root on a Debian machine; several checkouts may each have one at the same time.
"""
_EXAMPLES = """\
examples:
  python3 -m hack.cluster up                    start it, or whatever of it is missing
  export KUBECONFIG=$PWD/.cluster/kubeconfig    then use kubectl and helm, also in .cluster/bin
  python3 -m hack.cluster logs kubelet          the last lines of one component's log
  python3 -m hack.cluster down                  stop it; images and programs stay cached
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python3 -m hack.cluster",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="start the cluster; the first time builds its programs (10 to 15 minutes)")
    down_parser = commands.add_parser("down", help="stop it and remove processes, mounts, interfaces and state")
    down_parser.add_argument("--purge", action="store_true", help="also delete this cluster's images and logs")
    commands.add_parser("status", help="show each component; exit code 1 unless all run")
    logs_parser = commands.add_parser("logs", help="print the end of a component's log")
    logs_parser.add_argument("component", choices=NAMES)
    logs_parser.add_argument("--lines", type=int, default=100, metavar="N", help="how many (default 100)")
    logs_parser.add_argument("--follow", action="store_true", help="go on until interrupted")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 when it worked, 1 when it did not, 130 when it was interrupted.
    """
    options = parser().parse_args(arguments)
    paths = Paths.of_checkout(_CHECKOUT)
    try:
        match options.command:
            case "up":
                return _up(paths)
            case "down":
                return _down(paths, options.purge)
            case "status":
                return _status(paths)
            case _:
                return _logs(paths.logs / f"{options.component}.log", options.lines, options.follow)
    except ComponentError as error:
        print(f"\n{error}\nlast lines of {error.log}:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in tail(error.log, _FAILURE_LINES)), file=sys.stderr)
        return 1
    except ClusterError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run the command again to go on", file=sys.stderr)
        return 130


def tail(file: Path, num_lines: int) -> list[str]:
    """Return the last lines of a text file, without their ends; none when there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", errors="replace") as lines:
        return [line.rstrip("\n") for line in deque(lines, maxlen=num_lines)]


def _up(paths: Paths) -> int:
    check_machine(paths)
    console = Console(sys.stdout)
    started = time.monotonic()
    console.say(f"Kubernetes for development, cluster {paths.cluster_id} of {paths.checkout}")
    with locks.exclusive(paths.lock):
        is_changed = up(paths, console)
    state = "up" if is_changed else "already running"
    console.say(f"The cluster is {state} ({time.monotonic() - started:.1f} s). Next:")
    console.say(f"  export KUBECONFIG={paths.published / 'kubeconfig'}")
    console.say(f"  {paths.published / 'bin' / 'kubectl'} get pods --all-namespaces")
    return 0


def _down(paths: Paths, purge: bool) -> int:
    check_machine(paths)
    console = Console(sys.stdout)
    with locks.exclusive(paths.lock):
        down(paths, console, purge)
    console.say("The cluster is down." + ("" if purge else " Its images stay cached; `down --purge` deletes them."))
    return 0


def _status(paths: Paths) -> int:
    all_run = True
    for name in NAMES:
        record = processes.find(paths.run, name)
        all_run &= record is not None
        state = (
            "stopped" if record is None else f"running  pid {record.pid:<7} for {time.time() - record.started_at:.0f} s"
        )
        print(f"  {name:<24} {state}")
    if not all_run:
        print("Not everything runs; `python3 -m hack.cluster up` starts what is missing.")
    return 0 if all_run else 1


def _logs(log: Path, num_lines: int, follow: bool) -> int:
    if not log.exists():
        raise ClusterError(f"no log yet: {log}; run `python3 -m hack.cluster up` first")
    if follow:
        return subprocess.run(["tail", "-n", str(num_lines), "-F", str(log)], check=False).returncode
    print("\n".join(tail(log, num_lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
