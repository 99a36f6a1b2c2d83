"""Read the headers of safetensors files: names, shapes and sizes of tensors; no weights.

Format: 8 bytes length, then that much JSON, then the tensors.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_operator.facts.errors import corrupt, not_found

MAX_HEADER_BYTES = 100_000_000
"""The limit that the format's own library sets."""

INDEX_NAME = "model.safetensors.index.json"

PREFIX_BYTES = 8
"""Before the header: its length."""


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
        FactsError: a file that the index names is missing, or has not the tensors that the index says, or is cut short.
        OSError: a file cannot be opened.
    """
    index_path = folder / INDEX_NAME
    if not index_path.is_file():
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        return [tensor for name in names for tensor in read_header(folder / name)]
    weight_map = parse_index(index_path.read_bytes(), str(index_path))
    tensors_by_file = {}
    for name in sorted(set(weight_map.values())):
        if not (folder / name).is_file():
            raise not_found(f"{folder / name}: missing, but {INDEX_NAME} names it; download it again")
        tensors_by_file[name] = read_header(folder / name)
    return indexed_tensors(weight_map, tensors_by_file, str(index_path))


def read_header(path: Path) -> list[StoredTensor]:
    """Tensors of one file, checked against its length.

    Raises:
        FactsError: not a safetensors file, or cut short.
        OSError: the file cannot be opened.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(file.read(PREFIX_BYTES), size, str(path))
        return parse_header(file.read(length), size, str(path))


def header_length(prefix: bytes, size: int, source: str) -> int:
    """Bytes of the header behind the first 8 of a file of `size` bytes.

    Raises:
        FactsError: it cannot be the length of one.
    """
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == PREFIX_BYTES else 0
    if not 2 <= length <= MAX_HEADER_BYTES or PREFIX_BYTES + length > size:
        raise corrupt(f"{source}: not a safetensors file, or cut short: {size} bytes, header of {length}")
    return int(length)


def parse_header(raw: bytes, size: int, source: str) -> list[StoredTensor]:
    """Tensors that a header names, checked against the size of its file.

    Raises:
        FactsError: not a header, or the file is too short for it.
    """
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = [_tensor(name, entry) for name, entry in entries.items()]
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise corrupt(f"{source}: its header is not that of a safetensors file: {str(error) or repr(error)}") from None
    end += PREFIX_BYTES + len(raw)
    if end > size:
        raise corrupt(f"{source}: cut short: its tensors end at byte {end}, the file has {size}; download it again")
    return tensors


def parse_index(raw: bytes, source: str) -> dict[str, str]:
    """The file of each tensor; only plain file names, so that nothing leaves the folder.

    Raises:
        FactsError: not an index.
    """
    try:
        weight_map = json.loads(raw)["weight_map"]
        names = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise corrupt(f"{source}: not an index of safetensors: {error!r}") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise corrupt(f"{source}: {name!r} is not a file name")
    return dict(weight_map)


def indexed_tensors(
    weight_map: Mapping[str, str], tensors_by_file: Mapping[str, list[StoredTensor]], source: str
) -> list[StoredTensor]:
    """The tensors of all files, checked against the index.

    Raises:
        FactsError: a file lacks a tensor that the index says is in it, or has one that the index does not know.
    """
    for name, tensors in tensors_by_file.items():
        stored = {tensor.name for tensor in tensors}
        wanted = {tensor for tensor, file in weight_map.items() if file == name}
        if missing := sorted(wanted - stored):
            raise corrupt(f"{source}: says that {missing[0]} is in {name}, which has it not; download both again")
        if unknown := sorted(stored - wanted):
            raise corrupt(f"{source}: does not know {unknown[0]}, which is in {name}; download both again")
    return [tensor for tensors in tensors_by_file.values() for tensor in tensors]


def _tensor(name: str, entry: dict[str, Any]) -> StoredTensor:
    start, end = (_whole(value) for value in entry["data_offsets"])
    shape = tuple(_whole(size) for size in entry["shape"])
    if end < start:
        raise ValueError(f"{name}: data_offsets {start} to {end}")
    return StoredTensor(name, str(entry["dtype"]), shape, end - start)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value
