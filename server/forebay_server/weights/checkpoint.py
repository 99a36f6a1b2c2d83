"""Checkpoint: what the loader needs of any format, and how the format of a path is told."""

import json
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, Protocol

from forebay_server.errors import ExitCode, StartupError
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.models.model_config import ModelConfig
from forebay_server.weights.gguf_header import corrupt


class Checkpoint(Protocol):
    """Weights on disk under the names of Hugging Face, checked against the files' sizes, not yet read."""

    path: Path
    config: ModelConfig
    shapes: dict[str, tuple[int, ...]]
    """Every weight by name."""
    total_bytes: int
    """Of all weights as they are stored: the measure of progress."""
    formats: dict[str, WeightFormat]
    """The quantized weights: the form that holds each best."""

    def stored_as(self, name: str) -> str:
        """How a weight is stored, for people: `bfloat16`, `Q4_K`."""
        ...

    def tensors(self, names: Container[str] | None = None) -> Iterator[tuple[str, LinearWeight, int]]:
        """Read one weight after another: (name, weight, its bytes on disk). Holds one weight in memory at a time.

        Args:
            names: of the weights that are wanted; None: all.
        """
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, a folder with one GGUF file, or a folder with `config.json` and safetensors.

    Raises:
        StartupError: 11 when there is nothing like that; 16 and 2 as the formats' own readers say.
    """
    from forebay_server.weights.gguf_checkpoint import GgufCheckpoint
    from forebay_server.weights.safetensors_checkpoint import SafetensorsCheckpoint

    if path.is_file():
        return GgufCheckpoint(path)
    if not path.is_dir():
        raise not_found(f"{path}: no such file or folder", "check --model, and that the volume is mounted")
    if (path / "config.json").is_file():
        return SafetensorsCheckpoint(path)
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return GgufCheckpoint(gguf_files[0])
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files[:5])
        raise not_found(f"{path}: has {len(gguf_files)} GGUF files ({names})", "name one of them in --model")
    raise not_found(f"{path}: has neither config.json nor a GGUF file", "check --model")


def not_found(message: str, suggestion: str) -> StartupError:
    """The error for a model that is not where it should be."""
    return StartupError(ExitCode.MODEL_NOT_FOUND, "ModelNotFound", message, suggestion=suggestion)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object strictly: NaN and Infinity are refused, as is anything but an object.

    Raises:
        StartupError: 11 when it cannot be read, 16 when it is no JSON object.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except OSError as error:
        raise not_found(f"{path}: {error.strerror}", "check --model") from error
    except (ValueError, RecursionError) as error:
        raise corrupt(path, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise corrupt(path, "is not a JSON object")
    return value
