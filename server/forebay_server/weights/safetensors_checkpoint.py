"""A Hugging Face folder (`config.json`, one or more safetensors files) as a Checkpoint."""

import math
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.models.hugging_face_config import config_from_hugging_face
from forebay_server.models.model_config import unsupported
from forebay_server.weights.checkpoint import not_found, read_json
from forebay_server.weights.gguf_header import corrupt

INDEX = "model.safetensors.index.json"
BYTES_BY_DTYPE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class SafetensorsCheckpoint:
    """See `Checkpoint`; the headers of all files are checked when it is made.

    Raises:
        StartupError: 16 when a file is damaged, cut short or missing from the set; 11 when there are no weights.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config_file = path / "config.json"
        self.config = config_from_hugging_face(read_json(config_file), str(config_file))
        self._file_by_name = _weight_files(path)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.formats: dict[str, WeightFormat] = {}
        self._bytes_by_name: dict[str, int] = {}
        self._dtype_by_name: dict[str, str] = {}
        for file in self._files():
            self._check(file)
        self.total_bytes = sum(self._bytes_by_name.values())

    def stored_as(self, name: str) -> str:
        """See `Checkpoint.stored_as`."""
        return self._dtype_by_name[name]

    def tensors(self) -> Iterator[tuple[str, LinearWeight, int]]:
        """See `Checkpoint.tensors`; weights have the dtype in which they are stored."""
        for file in self._files():
            with safe_open(str(file), framework="pt") as opened:
                for name in self._names_in(file):
                    yield name, opened.get_tensor(name), self._bytes_by_name[name]

    def _files(self) -> list[Path]:
        return sorted(set(self._file_by_name.values()))

    def _names_in(self, file: Path) -> list[str]:
        return [name for name, holder in self._file_by_name.items() if holder == file]

    def _check(self, file: Path) -> None:
        """Read the header of one file and compare it with the index and with the file's size."""
        try:
            with safe_open(str(file), framework="pt") as opened:
                there = set(opened.keys())
                for name in self._names_in(file):
                    if name not in there:
                        raise corrupt(file, f"does not hold the tensor {name}, which {INDEX} says is there")
                    view = opened.get_slice(name)
                    if view.get_dtype() not in BYTES_BY_DTYPE:
                        raise unsupported(
                            f"{file}: tensor {name} is stored as {view.get_dtype()}, which is not supported"
                        )
                    self._dtype_by_name[name] = view.get_dtype()
                    self.shapes[name] = tuple(view.get_shape())
                    self._bytes_by_name[name] = math.prod(self.shapes[name]) * BYTES_BY_DTYPE[view.get_dtype()]
        except SafetensorError as error:
            raise corrupt(
                file, f"is cut short or no safetensors file ({error}); it has {file.stat().st_size:,} bytes"
            ) from error
        except OSError as error:
            raise corrupt(file, f"cannot be read: {error}") from error


def _weight_files(path: Path) -> dict[str, Path]:
    """Which file holds which weight, from the index or from the only file."""
    index = path / INDEX
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(name, str) and Path(name).name == name for name in weight_map.values()
        ):
            raise corrupt(index, "weight_map must be an object of file names in this folder")
        files = {name: path / file for name, file in weight_map.items()}
    else:
        found = sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            there = "no safetensors file" if not found else f"{len(found)} safetensors files and no {INDEX}"
            raise not_found(f"{path}: has {there}", "check --model, and that the download is complete")
        files = dict.fromkeys(_tensor_names(found[0]), found[0])
    missing = sorted({str(file) for file in files.values() if not file.is_file()})
    if missing:
        raise corrupt(path, f"{len(missing)} files that {INDEX} names are missing, the first is {missing[0]}")
    return files


def _tensor_names(file: Path) -> list[str]:
    try:
        with safe_open(str(file), framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise corrupt(
            file, f"is cut short or no safetensors file ({error}); it has {file.stat().st_size:,} bytes"
        ) from error
