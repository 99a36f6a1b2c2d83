"""Make the base image from Debian packages, for machines that reach no image registry."""

import hashlib
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

from hack.cluster.packages import SEARCH_PATH
from hack.images.apt_sources import debian_mirror, read_sources
from hack.images.buildah import LOG_LINES_SHOWN, Buildah
from hack.images.errors import ImageError

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
DOCKERFILE = """FROM scratch
ADD base.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
"""
# Of no use in an image: package files that apt keeps, package lists, texts in other languages, device nodes.
LEFT_OUT = ("./var/cache/apt/", "./var/lib/apt/lists/", "./usr/share/man/", "./usr/share/locale/", "./dev/")


def base_reference(prefix: str) -> str:
    """Return the name of the base image; its tag says how it is made.

    Args:
        prefix: what stands before the name, as in `forebay.local`.
    """
    recipe = "\0".join((SUITE, *PACKAGES, DOCKERFILE, *LEFT_OUT, platform.machine()))
    return f"{prefix}/debian-python:{SUITE}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def build_base(buildah: Buildah, reference: str) -> None:
    """Install Debian's Python into a folder and make an image of it.

    Raises:
        ImageError: there is no mirror, or debootstrap or buildah failed.
    """
    mirror = debian_mirror(read_sources(), SUITE)
    work = buildah.folder / "base"
    shutil.rmtree(work, ignore_errors=True)
    context = work / "context"
    context.mkdir(parents=True)
    try:
        _debootstrap(work / "root", mirror, buildah.log("base"))
        with tarfile.open(context / "base.tar", "w") as archive:
            archive.add(work / "root", arcname=".", filter=_keep)
        (context / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
        buildah.run("build", "--isolation=chroot", f"--tag={reference}", str(context), log="base")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _debootstrap(root: Path, mirror: str, log: Path) -> None:
    program = shutil.which("debootstrap", path=SEARCH_PATH)
    if program is None:
        raise ImageError("debootstrap is not installed (Debian package debootstrap)")
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [program, "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), mirror]
    with log.open("wb") as output:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
        raise ImageError(f"debootstrap failed with exit code {done.returncode}; from {log}:\n{tail}")


def _keep(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.startswith(LEFT_OUT) else entry
