"""kubectl and helm of the embedded cluster, as functions; raises with what the tool said."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".cluster"

_T = TypeVar("_T")


class ToolError(RuntimeError):
    """A command failed; the message holds the command and the end of its output."""


def run(program: str, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
    """Run `.cluster/bin/PROGRAM` against the embedded cluster and return its standard output.

    Raises:
        ToolError: it failed, or took longer than `timeout` seconds.
    """
    command = [str(STATE / "bin" / program), *arguments]
    environment = os.environ | {"KUBECONFIG": str(STATE / "kubeconfig")}
    try:
        done = subprocess.run(
            command, input=stdin, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except FileNotFoundError as missing:
        raise ToolError(f"{command[0]} is not there; start the cluster with: make cluster-up") from missing
    except subprocess.TimeoutExpired as late:
        raise ToolError(f"{program} {' '.join(arguments)}: no answer in {timeout:.0f} s") from late
    if done.returncode != 0:
        raise ToolError(f"{program} {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
    """Run kubectl as the cluster's administrator."""
    return run("kubectl", *arguments, stdin=stdin, timeout=timeout)


def get(kind: str, name: str, namespace: str) -> dict[str, Any] | None:
    """One object, or None when there is no such object."""
    text = kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
    return dict(json.loads(text)) if text.strip() else None


def list_objects(kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
    """The objects of a kind in a namespace."""
    text = kubectl("get", kind, "-n", namespace, "-l", selector, "-o", "json")
    return list(json.loads(text)["items"])


def apply(manifest: str | dict[str, Any], namespace: str | None = None) -> str:
    """`kubectl apply` a manifest given as YAML text or as an object."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    return kubectl("apply", *(["-n", namespace] if namespace else []), "-f", "-", stdin=text)


def condition(resource: dict[str, Any] | None, kind: str) -> dict[str, str]:
    """The condition of that type in an object's status, or an empty one."""
    conditions = (resource or {}).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def wait_until(what: str, probe: Callable[[], _T | None], seconds: float, every: float = 0.5) -> _T:
    """Call `probe` until it returns something other than None or False, and return that.

    Raises:
        ToolError: it did not within `seconds`; names what was waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found is not None and found is not False:
            return found
        if time.monotonic() > deadline:
            raise ToolError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(every)
