"""The folder that `forebay quantize` makes: room for it on the disk, and whole or not there at all."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from forebay_server.errors import ExitCode, StartupError

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


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder beside the target, which becomes the target when the block ends well and is removed when it does not.

    What a killed run has left is removed first.
    """
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
