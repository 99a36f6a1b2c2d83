"""A path to ModelFacts: finds out what lies there and reads its metadata."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from forebay_operator.facts.architectures import UNQUANTIZED, dtype, model_facts
from forebay_operator.facts.config_reader import ConfigReader
from forebay_operator.facts.errors import bad_config, corrupt, not_allowed, not_found
from forebay_operator.facts.gguf_facts import read_gguf_facts
from forebay_operator.facts.model_facts import Checkpoint, ModelFacts
from forebay_operator.facts.quantization_config import apply_scheme, read_scheme
from forebay_operator.facts.safetensors_header import StoredTensor, read_folder

MAX_CONFIG_BYTES = 16 * 1024 * 1024
MODELOPT_NAME = "hf_quant_config.json"


def inspect_model(path: Path) -> ModelFacts:
    """Facts of the model at a path, from its metadata alone.

    Args:
        path: a GGUF file, a folder with one GGUF file, a folder with config.json, or a config.json.

    Raises:
        FactsError: nothing there, not readable, damaged, or of an unknown kind; one line that names file and key.
    """
    try:
        return _inspect(path)
    except FileNotFoundError as error:
        raise not_found(f"{error.filename or path}: no such file") from None
    except PermissionError as error:
        raise not_allowed(f"{error.filename or path}: may not be read by this user") from None
    except OSError as error:
        raise corrupt(f"{error.filename or path}: cannot be read: {error.strerror}") from None


def _inspect(path: Path) -> ModelFacts:
    if not path.exists():
        raise not_found(f"{path}: no such file or folder")
    if path.is_file():
        return _inspect_file(path)
    if (path / "config.json").is_file():
        return read_config_facts(path / "config.json")
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return read_gguf_facts(ggufs[0])
    if ggufs:
        names = ", ".join(file.name for file in ggufs[:5])
        raise bad_config(f"{path}: has {len(ggufs)} GGUF files ({names}); name one of them")
    raise not_found(f"{path}: has neither config.json nor a GGUF file")


def _inspect_file(path: Path) -> ModelFacts:
    if path.suffix == ".json":
        return read_config_facts(path)
    if path.suffix == ".safetensors":
        raise bad_config(f"{path}: tensors alone do not say what the model is; name its folder, with config.json")
    return read_gguf_facts(path)


def read_config_facts(path: Path) -> ModelFacts:
    """Facts from config.json and the headers of the safetensors beside it, where there are any.

    Raises:
        FactsError: as `inspect_model`.
        OSError: a file cannot be opened.
    """
    data = _read_object(path)
    modelopt_path = path.parent / MODELOPT_NAME
    modelopt = _read_object(modelopt_path) if modelopt_path.is_file() else None
    tensors = read_folder(path.parent)
    facts = facts_of_config(data, str(path), modelopt, tensors)
    check_complete(facts, str(path.parent), path.name)
    return facts


def facts_of_config(
    data: Mapping[str, Any],
    source: str,
    modelopt: Mapping[str, Any] | None = None,
    tensors: Sequence[StoredTensor] = (),
) -> ModelFacts:
    """Facts from a parsed configuration.

    Args:
        data: as config.json has it.
        source: file name for messages.
        modelopt: as hf_quant_config.json has it, if there is one.
        tensors: what the headers of the safetensors list, if there are any.

    Raises:
        FactsError: the architecture is not known, or a key is missing or wrong; names file and key.
    """
    config = ConfigReader(data, source)
    scheme = read_scheme(config, modelopt)
    container: Literal["safetensors", "none"] = "safetensors" if tensors else "none"
    if scheme is None:
        checkpoint = Checkpoint(container=container, format=UNQUANTIZED[dtype(config)])
    else:
        checkpoint = scheme.checkpoint(container)
    checkpoint = replace(
        checkpoint,
        file_bytes=sum(tensor.num_bytes for tensor in tensors),
        stored_parameters=0 if scheme else sum(tensor.num_elements for tensor in tensors),
    )
    facts = model_facts(config, checkpoint)
    return facts if scheme is None else replace(facts, tensors=apply_scheme(facts.tensors, scheme))


def check_complete(facts: ModelFacts, folder: str, config: str) -> None:
    """Files that hold less than the configuration describes are an unfinished download.

    Raises:
        FactsError: they do.
    """
    stored = facts.checkpoint.stored_parameters
    if stored and stored * 100 < facts.num_parameters * 99:
        raise corrupt(f"{folder}: its safetensors hold {stored} parameters, {config} describes {facts.num_parameters}")


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a small file."""
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise bad_config(f"{path}: {path.stat().st_size} bytes are too many for a configuration")
    return parse_object(path.read_bytes(), str(path))


def parse_object(raw: bytes, source: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        FactsError: not JSON, or not an object.
    """
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_config(f"{source}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise bad_config(f"{source}: must hold an object, not {type(data).__name__}")
    return data
