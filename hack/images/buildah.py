"""Run buildah with a storage folder of our own, so that nothing of the machine's other images is touched."""

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.cluster.packages import SEARCH_PATH
from hack.images.errors import ImageError

RUN_ROOT = Path("/run/forebay")
LOG_LINES_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Buildah:
    """Buildah on one storage folder.

    Attributes:
        folder: the cache folder; storage, temporary files and logs lie below it.
    """

    folder: Path

    @property
    def run_root(self) -> Path:
        """What must not outlive a reboot, such as which layers are mounted; one for each storage folder."""
        return RUN_ROOT / f"images-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}"

    @property
    def temporary(self) -> Path:
        """Layers pass through here (5 GB at a time), so it must not be a file system in memory."""
        return self.folder / "tmp"

    def log(self, name: str) -> Path:
        """Return the file that receives the output of a long command."""
        return self.folder / "logs" / f"{name}.log"

    def has_image(self, reference: str) -> bool:
        """Whether the storage holds an image of this name."""
        command = self._command("inspect", "--type", "image", reference)
        return subprocess.run(command, env=self._environment(), capture_output=True, check=False).returncode == 0

    def run(self, *arguments: str, log: str, environment: dict[str, str] | None = None) -> None:
        """Run a buildah command, its output going to a log file.

        Args:
            arguments: the subcommand and its arguments.
            log: name of the log, without folder and ending.
            environment: variables to set.

        Raises:
            ImageError: it failed; the message ends with the last lines of the log.
        """
        self.temporary.mkdir(parents=True, exist_ok=True)
        path = self.log(log)
        path.parent.mkdir(parents=True, exist_ok=True)
        command = self._command(*arguments)
        with path.open("wb") as output:
            done = subprocess.run(
                command,
                env=self._environment() | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != 0:
            tail = "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
            raise ImageError(f"`buildah {arguments[0]}` failed with exit code {done.returncode}; from {path}:\n{tail}")

    def prune(self, keep: int) -> None:
        """Remove all but the newest images of each repository, and the cached layers that only they used."""
        listing = subprocess.run(
            self._command("images", "--json"), env=self._environment(), capture_output=True, text=True, check=False
        )
        if listing.returncode == 0:
            old = superseded(json.loads(listing.stdout or "null") or [], keep)
            if old:
                self.run("rmi", "--force", *old, log="prune")

    def remove_containers(self) -> None:
        """Remove what interrupted builds left; each can hold 5 GB."""
        subprocess.run(self._command("rm", "--all"), env=self._environment(), capture_output=True, check=False)

    def _command(self, *arguments: str) -> list[str]:
        program = shutil.which("buildah", path=SEARCH_PATH)
        if program is None:
            raise ImageError("buildah is not installed (Debian package buildah)")
        return [
            program,
            f"--root={self.folder / 'storage'}",
            f"--runroot={self.run_root}",
            # vfs, the other choice, would copy 5 GB for each line of a Dockerfile.
            "--storage-driver=overlay",
            *arguments,
        ]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary)}


def superseded(images: list[dict[str, Any]], keep: int) -> list[str]:
    """Return the ids of images that newer ones of the same repository have replaced.

    Args:
        images: as `buildah images --json` lists them; one without a name is what an earlier stage of a build left.
        keep: how many of each repository stay; one such stage stays for each image of the two repositories.
    """
    kept: dict[str, int] = {}
    old: list[str] = []
    for image in sorted(images, key=lambda image: int(image["created"]), reverse=True):
        repositories = {name.rpartition(":")[0] for name in image.get("names") or []} or {""}
        for repository in repositories:
            kept[repository] = kept.get(repository, 0) + 1
        if all(kept[repository] > (keep if repository else 2 * keep) for repository in repositories):
            old.append(image["id"])
    return old
