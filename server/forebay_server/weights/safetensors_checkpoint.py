"""A Hugging Face folder (`config.json`, one or more safetensors files) as a Checkpoint, quantized or not."""

import math
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from forebay_server.errors import StartupError
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.models.hugging_face_config import config_from_hugging_face
from forebay_server.models.model_config import unsupported
from forebay_server.weights.checkpoint import not_found, read_json
from forebay_server.weights.gguf_header import corrupt
from forebay_server.weights.layer_format import (
    IGNORED_PARTS,
    LayerFormat,
    LayoutError,
    QuantizationMethod,
    TensorHeader,
)
from forebay_server.weights.quantization_config import read_quantization

INDEX = "model.safetensors.index.json"
BYTES_BY_DTYPE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Of weights that are not quantized."""
_BYTES_OF_PARTS = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}


_OTHER_SENSES = tuple(
    f"{prefix}{part}" for prefix in ("", "model.") for part in ("vision_tower.", "multi_modal_projector.")
)
"""Layers of models that see images, too."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One weight of the model, and the tensors of the files that it is made of."""

    parts: Mapping[str, str]
    """Names of the tensors by the last part of the name; a weight that is not quantized is one tensor."""
    layer_format: LayerFormat | None = None
    """None: not quantized."""


class SafetensorsCheckpoint:
    """See `Checkpoint`; the headers of all files are checked when it is made.

    Raises:
        StartupError: 16 when a file is damaged, cut short or missing from the set, or a quantized layer is not whole; 2
            when it is quantized in a way that is not supported; 11 when there are no weights.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config_file = path / "config.json"
        config = read_json(config_file)
        self.config = config_from_hugging_face(config, str(config_file))
        self._file_by_name = _weight_files(path)
        self._headers: dict[str, TensorHeader] = {}
        for file in sorted(set(self._file_by_name.values())):
            self._read_headers(file)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.formats: dict[str, WeightFormat] = {}
        self._weights: dict[str, StoredWeight] = {}
        self._find_weights(read_quantization(path, config))
        self.total_bytes = sum(map(self._num_bytes, self._weights))

    def stored_as(self, name: str) -> str:
        """See `Checkpoint.stored_as`."""
        weight = self._weights[name]
        if weight.layer_format is not None:
            return weight.layer_format.label
        return self._headers[next(iter(weight.parts.values()))].dtype

    def tensors(self, names: Container[str] | None = None) -> Iterator[tuple[str, LinearWeight, int]]:
        """See `Checkpoint.tensors`; weights that are not quantized have the dtype in which they are stored."""
        with ExitStack() as stack:
            opened = {
                file: stack.enter_context(safe_open(str(file), framework="pt"))
                for file in sorted(set(self._file_by_name.values()))
            }
            for name, weight in self._weights.items():
                if names is not None and name not in names:
                    continue
                parts = {
                    part: opened[self._file_by_name[tensor]].get_tensor(tensor) for part, tensor in weight.parts.items()
                }
                if weight.layer_format is None:
                    yield name, next(iter(parts.values())), self._num_bytes(name)
                    continue
                try:
                    decoded = weight.layer_format.decode(parts)
                except LayoutError as error:
                    raise self._wrong(name.removesuffix(".weight"), error) from error
                yield name, decoded, self._num_bytes(name)

    def _num_bytes(self, name: str) -> int:
        headers = (self._headers[tensor] for tensor in self._weights[name].parts.values())
        sizes = BYTES_BY_DTYPE | _BYTES_OF_PARTS
        return sum(math.prod(header.shape) * sizes[header.dtype] for header in headers)

    def _find_weights(self, method: QuantizationMethod | None) -> None:
        """Put the tensors of the files together to weights."""
        layers: dict[str, dict[str, TensorHeader]] = {}
        for name, header in self._headers.items():
            if not name.startswith(_OTHER_SENSES):
                layer, _, part = name.rpartition(".")
                layers.setdefault(layer, {})[part] = header
        for layer, parts in layers.items():
            used: set[str] = set()
            if method is not None and parts.keys() - IGNORED_PARTS:
                try:
                    layer_format = method.layer_format(layer, parts)
                    if layer_format is not None:
                        used = self._add_quantized(layer, parts, layer_format)
                except LayoutError as error:
                    raise self._wrong(layer, error) from error
            if method is not None:
                used |= IGNORED_PARTS
            for part in sorted(parts.keys() - used):
                self._add_plain(f"{layer}.{part}" if layer else part)

    def _add_quantized(self, layer: str, parts: Mapping[str, TensorHeader], layer_format: LayerFormat) -> set[str]:
        """Note a quantized layer; returns the parts that it takes."""
        for part in (layer_format.main, *layer_format.required):
            if part not in parts:
                raise corrupt(
                    self.path,
                    f"tensor {layer}.{part} is missing: the layer is quantized ({layer_format.label}) unless"
                    " quantization_config says that it is not",
                )
        needed = (layer_format.main, *layer_format.required, *layer_format.optional)
        names = {part: f"{layer}.{part}" for part in needed if part in parts}
        name = f"{_name_in_text(layer)}.weight"
        self.shapes[name], self.formats[name] = layer_format.describe(parts)
        self._weights[name] = StoredWeight(names, layer_format)
        return set(names)

    def _add_plain(self, name: str) -> None:
        dtype = self._headers[name].dtype
        if dtype not in BYTES_BY_DTYPE:
            raise unsupported(
                f"{self._file_by_name[name]}: tensor {name} is stored as {dtype}, and config.json does not say how"
                " it is quantized"
            )
        own_name = _name_in_text(name)
        self.shapes[own_name] = self._headers[name].shape
        self._weights[own_name] = StoredWeight({name.rpartition(".")[2]: name})

    def _wrong(self, layer: str, error: LayoutError) -> StartupError:
        name = f"{layer}.{error.part}"
        return corrupt(self._file_by_name.get(name, self.path), f"tensor {name} {error.problem}")

    def _read_headers(self, file: Path) -> None:
        """Read the header of one file and compare it with the index and with the file's size."""
        try:
            with safe_open(str(file), framework="pt") as opened:
                there = set(opened.keys())
                for name in (name for name, holder in self._file_by_name.items() if holder == file):
                    if name not in there:
                        raise corrupt(file, f"does not hold the tensor {name}, which {INDEX} says is there")
                    view = opened.get_slice(name)
                    if view.get_dtype() not in BYTES_BY_DTYPE | _BYTES_OF_PARTS:
                        raise unsupported(
                            f"{file}: tensor {name} is stored as {view.get_dtype()}, which is not supported"
                        )
                    self._headers[name] = TensorHeader(tuple(view.get_shape()), view.get_dtype())
        except SafetensorError as error:
            raise corrupt(
                file, f"is cut short or no safetensors file ({error}); it has {file.stat().st_size:,} bytes"
            ) from error
        except OSError as error:
            raise corrupt(file, f"cannot be read: {error}") from error


def _name_in_text(name: str) -> str:
    """How a weight of the text part is called in models of text alone; older and newer files wrap it differently."""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")


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
