"""The checked-in table of what every kernel's machine code uses: written by the compile gate, compared by its test."""

from collections.abc import Iterable, Mapping
from pathlib import Path

TABLE_PATH = Path(__file__).parent.parent / "compile_table.txt"
"""Not part of the installed package: the gate is a tool of the repository."""

Key = tuple[str, str, str]
"""(kernel, configuration, target)."""
Use = tuple[int, int, int, int, int]
"""(registers, spilled bytes, shared bytes, warps, occupancy in percent)."""

_COLUMNS = "kernel | configuration | target | registers | spilled bytes | shared bytes | warps | occupancy %"
_PREFIX = "# triton "


def format_table(rows: Mapping[Key, Use], version: str) -> str:
    """Return the table's text, sorted, for the compiler of this version."""
    lines = [f"{_PREFIX}{version}", f"# {_COLUMNS}"]
    lines += [" | ".join((*key, *map(str, use))) for key, use in sorted(rows.items())]
    return "\n".join(lines) + "\n"


def parse_table(text: str) -> tuple[str, dict[Key, Use]]:
    """Return the compiler's version and the rows.

    Raises:
        ValueError: the text is not such a table; says which line.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith(_PREFIX):
        raise ValueError(f"line 1: expected {_PREFIX!r} and the version, got {lines[:1]}")
    rows: dict[Key, Use] = {}
    for number, line in enumerate(lines[2:], start=3):
        fields = line.split(" | ")
        try:
            kernel, configuration, target, registers, spilled, shared, warps, occupancy = fields
            use = (int(registers), int(spilled), int(shared), int(warps), int(occupancy))
        except ValueError:
            raise ValueError(f"line {number}: expected {_COLUMNS!r}, got {line!r}") from None
        rows[kernel, configuration, target] = use
    return lines[0].removeprefix(_PREFIX), rows


def differences(expected: Mapping[Key, Use], actual: Mapping[Key, Use]) -> Iterable[str]:
    """Yield one sentence for each row that is new, gone or uses something else."""
    for key in sorted(expected.keys() | actual.keys()):
        before, after = expected.get(key), actual.get(key)
        if before != after:
            yield f"{', '.join(key)}: {before or 'not in the table'} -> {after or 'not compiled'}"
