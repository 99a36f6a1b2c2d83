"""Read the header of a GGUF file: metadata and tensor table; no weights, no numpy.

Format: the GGUF specification of the ggml project, versions 2 and 3 (little endian).
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay_operator.facts.errors import FactsError, corrupt

MAX_STRING_BYTES = 1 << 24
MAX_TENSORS = 1 << 20
MAX_METADATA = 1 << 16

BLOCKS: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Number of a tensor type: its name, weights in a block, bytes of a block."""

_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING: Final = 8
_ARRAY: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ArrayLength:
    """What is kept of an array in the metadata: only how long it is (vocabularies have 100,000 strings)."""

    length: int


MetadataValue = int | float | bool | str | ArrayLength


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor table."""

    name: str
    num_elements: int
    type_name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Metadata by key, tensors by name."""

    metadata: dict[str, MetadataValue]
    tensors: dict[str, GGUFTensor]


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read metadata and tensor table, and check that the file is as long as the table says.

    Raises:
        FactsError: not a GGUF file, an unknown version or tensor type, or cut short (`CorruptModel`).
        OSError: the file cannot be opened.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise corrupt(f"{path}: {path.stat().st_size} bytes are too few for a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data, len(data), str(path)).header()


class MoreNeededError(Exception):
    """The header goes on behind the part of the file that is here."""


def parse_gguf_header(start: bytes, size: int, source: str) -> GGUFHeader:
    """The same from the first bytes of a file of `size` bytes.

    Raises:
        FactsError: as `read_gguf_header`.
        MoreNeededError: the header is longer than what is here.
    """
    return _Cursor(start, size, source).header()


class _Cursor:
    """A place in the file that moves on with every read; all reads are checked against the end."""

    def __init__(self, data: mmap.mmap | bytes, size: int, source: str) -> None:
        self._data = data
        self._size = size
        self._source = source
        self._at = 0

    def header(self) -> GGUFHeader:
        if self._take(4) != b"GGUF":
            raise corrupt(f"{self._source}: not a GGUF file: it does not begin with 'GGUF'")
        version = self._u32()
        if version not in (2, 3):
            raise corrupt(f"{self._source}: GGUF version {version} is not known; versions 2 and 3 are")
        num_tensors = self._count("tensors", MAX_TENSORS)
        num_metadata = self._count("metadata entries", MAX_METADATA)
        metadata: dict[str, MetadataValue] = {}
        for _ in range(num_metadata):
            key = self._string()
            metadata[key] = self._value(self._u32())
        entries = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise corrupt(f"{self._source}: general.alignment is {alignment!r}, not a positive number")
        start = -(-self._at // alignment) * alignment
        end = max((start + offset + tensor.num_bytes for tensor, offset in entries), default=start)
        if end > self._size:
            raise corrupt(
                f"{self._source}: cut short: its tensors end at byte {end}, the file at {self._size}; download it again"
            )
        return GGUFHeader(metadata, {tensor.name: tensor for tensor, _ in entries})

    def _tensor(self) -> tuple[GGUFTensor, int]:
        name = self._string()
        num_elements = 1
        for _ in range(self._u32()):
            num_elements *= self._u64()
        type_number, offset = self._u32(), self._u64()
        if type_number not in BLOCKS:
            raise corrupt(f"{self._source}: tensor {name!r} has type {type_number}, which is not known")
        type_name, block, block_bytes = BLOCKS[type_number]
        return GGUFTensor(name, num_elements, type_name, num_elements // block * block_bytes), offset

    def _value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise corrupt(f"{self._source}: metadata type {kind} at byte {self._at} is not known")
        value: int | float | bool = scalar.unpack(self._take(scalar.size))[0]
        return value

    def _array(self) -> ArrayLength:
        """Step over an array; a loop only for strings, which carry their lengths."""
        kind, length = self._u32(), self._u64()
        if kind == _STRING:
            self._skip_strings(length)
        elif kind in _SCALARS:
            self._skip(length * _SCALARS[kind].size)
        else:
            raise corrupt(f"{self._source}: an array of type {kind} at byte {self._at} is not known")
        return ArrayLength(length)

    def _skip_strings(self, count: int) -> None:
        data, at, unpack = self._data, self._at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):  # a length that leads beyond the end, or beyond any end
            raise self._cut_short() from None
        self._at = at
        self._skip(0)

    def _string(self) -> str:
        length = self._u64()
        if length > MAX_STRING_BYTES:
            raise corrupt(f"{self._source}: a string of {length} bytes at byte {self._at} is too long")
        return self._take(length).decode("utf-8", errors="replace")

    def _count(self, what: str, limit: int) -> int:
        count = self._u64()
        if count > limit:
            raise corrupt(f"{self._source}: {count} {what} are too many")
        return count

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def _take(self, count: int) -> bytes:
        start = self._at
        self._skip(count)
        return self._data[start : self._at]

    def _skip(self, count: int) -> None:
        if self._at + count > len(self._data):
            raise self._cut_short()
        self._at += count

    def _cut_short(self) -> FactsError | MoreNeededError:
        if len(self._data) < self._size:
            return MoreNeededError()
        return corrupt(f"{self._source}: cut short inside its header, after {self._size} bytes; download it again")
