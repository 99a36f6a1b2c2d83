"""Read the headers of safetensors files: names, shapes and sizes of tensors; no weights.

Format: 8 bytes length, then that much JSON, then the tensors.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_operator.facts.errors import corrupt, not_found

MAX_HEADER_BYTES = 100_000_000
"""The limit that the format's own library sets."""

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as the header names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        count = 1
        for size in self.shape:
            count *= size
        return count


def read_folder(folder: Path) -> list[StoredTensor]:
    """Headers of all safetensors files of a model: those that the index names, else every one in the folder.

    Returns:
        The tensors; empty when the folder has no safetensors at all.

    Raises:
        FactsError: a file that the index names is missing, or a file is cut short.
        OSError: a file cannot be opened.
    """
    index_path = folder / INDEX_NAME
    if index_path.is_file():
        names = _index_files(index_path)
        for name in names:
            if not (folder / name).is_file():
                raise not_found(f"{folder / name}: missing, but {INDEX_NAME} names it; download it again")
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    return [tensor for name in names for tensor in read_header(folder / name)]


def read_header(path: Path) -> list[StoredTensor]:
    """Tensors of one file, checked against its length.

    Raises:
        FactsError: not a safetensors file, or cut short.
        OSError: the file cannot be opened.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= MAX_HEADER_BYTES or 8 + length > size:
            raise corrupt(f"{path}: not a safetensors file, or cut short: {size} bytes, header of {length}")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = [_tensor(name, entry) for name, entry in entries.items()]
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise corrupt(f"{path}: its header is not that of a safetensors file: {error!r}") from None
    if 8 + length + end > size:
        raise corrupt(
            f"{path}: cut short: its tensors end at byte {8 + length + end}, the file has {size}; download it again"
        )
    return tensors


def _tensor(name: str, entry: dict[str, Any]) -> StoredTensor:
    start, end = entry["data_offsets"]
    return StoredTensor(name, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]), int(end) - int(start))


def _index_files(path: Path) -> list[str]:
    """Names of the files that an index refers to; only plain names, so that nothing leaves the folder."""
    try:
        names = sorted(set(json.loads(path.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise corrupt(f"{path}: not an index of safetensors: {error!r}") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise corrupt(f"{path}: {name!r} is not a file name")
    return names
