"""The folder that `forebay quantize` makes: room for it on the disk, and whole or not there at all."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from forebay_server.errors import ExitCode, StartupError
from forebay_server.quantize.kept_run import FILE as PROGRESS_FILE

_OTHER_FILES_BYTES = 64 << 20
"""Tokenizer and configuration at most."""
_PLAIN_BYTES = 2.0
"""A number in bfloat16."""
_NOT_QUANTIZED = ("model.embed_tokens.weight", "lm_head.weight")


def output_bytes(shapes: Mapping[str, Sequence[int]], bytes_per_weight: float) -> int:
    """About how large the checkpoint will be, rather too large.

    Args:
        shapes: of all weights by name.
        bytes_per_weight: of a quantized one, scales included.
    """
    total = float(_OTHER_FILES_BYTES)
    for name, shape in shapes.items():
        size = 1
        for length in shape:
            size *= length
        is_quantized = len(shape) == 2 and name not in _NOT_QUANTIZED
        total += size * (bytes_per_weight if is_quantized else _PLAIN_BYTES)
    return int(total)


def check_space(target: Path, need_bytes: int) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        StartupError: 2, with both numbers.
    """
    unfinished = unfinished_folder(target)
    need_bytes -= sum(file.stat().st_size for file in unfinished.glob("*.safetensors"))
    existing = next(folder for folder in target.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if free < need_bytes:
        raise StartupError(
            ExitCode.BAD_CONFIGURATION,
            "DiskFull",
            f"--output {target}: about {need_bytes:,} bytes are needed, {free:,} are free on the disk of {existing}",
            need_bytes=need_bytes,
            have_bytes=free,
        )


def check_target(target: Path, *, resumes: bool) -> None:
    """Refuse to write over what is there.

    Args:
        target: the folder to be made.
        resumes: whether to go on with an unfinished run.

    Raises:
        StartupError: 2.
    """
    unfinished = unfinished_folder(target)
    problem = None
    if target.exists():
        problem = f"--output {target}: exists already; name a folder that does not"
    elif not resumes and (unfinished / PROGRESS_FILE).exists():
        problem = f"{unfinished} has layers of an unfinished run: go on with it by --resume, or remove it"
    if problem is not None:
        raise StartupError(ExitCode.BAD_CONFIGURATION, "BadConfiguration", problem)


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder beside the target, which becomes the target when the block ends well and is removed when it does not.

    One in which a `KeptRun` has written stays and is begun with; what a killed run has left otherwise is removed first.
    """
    unfinished = unfinished_folder(target)
    progress = unfinished / PROGRESS_FILE
    if not progress.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True, exist_ok=True)
    try:
        yield unfinished
        unfinished.rename(target)
    finally:
        if not progress.exists():
            shutil.rmtree(unfinished, ignore_errors=True)


def unfinished_folder(target: Path) -> Path:
    """Where a checkpoint is until it is whole."""
    return target.with_name(target.name + ".unfinished")
