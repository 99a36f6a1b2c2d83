"""What `forebay quantize --resume` keeps of a run after every layer, so that a later run goes on where it ended."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_server.errors import ExitCode, StartupError

if TYPE_CHECKING:
    import torch

    from forebay_server.quantize.method import Method
    from forebay_server.weights.checkpoint import Checkpoint

FILE = "progress.safetensors"
"""In the unfinished folder. It appears whole, after the files that it tells of."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run came."""

    num_layers: int
    """That are done."""
    difference: float
    """Squared difference of their quantized weights."""
    size: float
    """Squared size of their weights."""
    weight_map: dict[str, str]
    """The file of each tensor that was written."""
    total_bytes: int
    """Of those tensors."""


class KeptRun:
    """The progress of one run in a folder.

    Args:
        folder: of the unfinished checkpoint.
        fingerprint: of everything that the result depends on.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._file = folder / FILE
        self._fingerprint = fingerprint

    def read(self) -> "tuple[Progress, dict[str, torch.Tensor]] | None":
        """What was written last, and the prompts' state (`LayerWalk.state`); None: nothing was.

        Raises:
            StartupError: 2: a run with other arguments wrote it.
        """
        from safetensors import safe_open

        if not self._file.exists():
            return None
        with safe_open(self._file, framework="pt") as file:
            metadata = file.metadata()
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        if metadata["fingerprint"] != self._fingerprint:
            raise StartupError(
                ExitCode.BAD_CONFIGURATION,
                "OtherRun",
                f"{self._file.parent} was kept by a run with another model, method, group size or calibration; "
                "give the same ones, or remove it to begin anew",
            )
        return Progress(**json.loads(metadata["progress"])), state

    def write(self, progress: Progress, state: "dict[str, torch.Tensor]") -> None:
        """Keep this instead of what was kept before."""
        from safetensors.torch import save_file

        new = self._file.with_suffix(".new")
        save_file(state, new, metadata={"fingerprint": self._fingerprint, "progress": json.dumps(asdict(progress))})
        new.replace(self._file)

    def remove(self) -> None:
        """The run is done."""
        self._file.unlink(missing_ok=True)


def fingerprint_of(checkpoint: "Checkpoint", method: "Method", prompts: Sequence[Sequence[int]]) -> str:
    """Changes when the result of a run would, as far as files tell by their size and time."""
    digest = hashlib.sha256()
    for path in sorted(checkpoint.path.glob("*") if checkpoint.path.is_dir() else [checkpoint.path]):
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    digest.update(f"{type(method).__name__} {method.group()} {json.dumps(prompts)}".encode())
    return digest.hexdigest()
