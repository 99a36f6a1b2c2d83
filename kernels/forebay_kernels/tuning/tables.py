"""Tables of launch options, one JSON file a GPU: kernel and shape class -> warps and stages.

A table lies in the package (`tables/<gpu>.json`, shipped after it was measured there) or in the user's cache folder
(written by `forebay tune kernels`), which goes first. Without one the defaults hold that each kernel was written with.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

Table = Mapping[str, "LaunchOptions"]
"""By shape class."""

_VERSION = 1


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How one Triton function is compiled for one shape class."""

    num_warps: int
    num_stages: int | None
    """None: the compiler's default."""

    def merged(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a launch with these in place of its own."""
        own = {name: value for name, value in options.items() if name != "num_stages"}
        stages = {} if self.num_stages is None else {"num_stages": self.num_stages}
        return {**own, "num_warps": self.num_warps, **stages}


class TableError(Exception):
    """A table cannot be read; the message names the file."""


def shape_class(kernel_name: str, arguments: Mapping[str, Any]) -> str:
    """What a compiled kernel depends on: its name, its constants, and the number formats of its tensors.

    Sizes that change from step to step are no part of it, so a row's options never depend on its batch, except where
    its tile does.

    Args:
        kernel_name: of the Triton function.
        arguments: of the launch, by name; constants are in capitals.
    """
    constants = [f"{name}={value}" for name, value in sorted(arguments.items()) if name.isupper()]
    dtypes = [str(value.dtype).removeprefix("torch.") for value in arguments.values() if hasattr(value, "dtype")]
    return " ".join([kernel_name, *constants, ",".join(dtypes)])


def table_name(gpu_name: str) -> str:
    """The file of a GPU, less `.json`: `NVIDIA H100 80GB HBM3` -> `nvidia-h100-80gb-hbm3`."""
    return "-".join("".join(c if c.isalnum() else " " for c in gpu_name.lower()).split())


def user_folder() -> Path:
    """Where `forebay tune kernels` writes, and tables are looked for first."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay" / "kernels"


@cache
def table_of(gpu_name: str) -> Table:
    """What was measured on a GPU of this name; empty where nothing was.

    Raises:
        TableError: a file is there and damaged.
    """
    name = f"{table_name(gpu_name)}.json"
    shipped = files("forebay_kernels.tuning").joinpath("tables", name)
    own = user_folder() / name
    if own.is_file():
        return read_table(own.read_text(), str(own))
    return read_table(shipped.read_text(), f"tables/{name}") if shipped.is_file() else {}


def read_table(text: str, where: str) -> Table:
    """A table from its JSON.

    Raises:
        TableError: it is damaged, or of another version.
    """
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            raise TableError(f"{where}: version {document['version']} is not {_VERSION}; run `forebay tune kernels`")
        return {key: LaunchOptions(**options) for key, options in document["options"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"{where}: no table of launch options ({error}); delete it, or tune again") from error


def write_table(gpu_name: str, table: Table, software: Mapping[str, str]) -> str:
    """The JSON of a table.

    Args:
        gpu_name: as PyTorch calls it.
        table: what was found.
        software: versions with which it was measured.
    """
    options = {key: asdict(value) for key, value in sorted(table.items())}
    return json.dumps({"version": _VERSION, "gpu": gpu_name, **software, "options": options}, indent=1) + "\n"
