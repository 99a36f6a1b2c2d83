"""A model folder with random weights for a configuration, so that a shape can be measured without its checkpoint."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from forebay_server.errors import ForebayError
from forebay_server.models.hugging_face_config import config_from_hugging_face
from forebay_server.models.registry import model_class

_NOISE_ELEMENTS = 1 << 22


class ConfigFileError(ForebayError):
    """The configuration cannot be used."""


def write_random_checkpoint(config_file: Path, folder: Path, seed: int) -> Path:
    """Write config.json and bfloat16 safetensors, a file for each layer.

    Values are normal with a deviation of 1/sqrt(in_features), so that activations keep their size; they repeat every
    4 million, which no measurement of speed can see.

    Raises:
        ConfigFileError: the file is unreadable or no JSON object.
        StartupError: the configuration is impossible or not supported.
    """
    try:
        values = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigFileError(f"--random-weights {config_file}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigFileError(f"--random-weights {config_file}: is not a JSON object")
    values = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", **values}
    config = config_from_hugging_face(values, str(config_file))
    with torch.device("meta"):
        model = model_class(config)(config)
    shapes = {name: tuple(slot.shape) for name, slot in model.slots().items()}
    noise = torch.randn(_NOISE_ELEMENTS, generator=torch.Generator().manual_seed(seed)).bfloat16()
    by_file: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        parts = name.split(".")
        group = parts[2] if parts[1:2] == ["layers"] else "rest"
        by_file.setdefault(f"model-{group}.safetensors", {})[name] = shape
    weight_map: dict[str, str] = {}
    for file_name, members in by_file.items():
        save_file({name: _weight(noise, shape) for name, shape in members.items()}, folder / file_name)
        weight_map |= dict.fromkeys(members, file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def _weight(noise: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    size = int(torch.Size(shape).numel())
    repeated = noise.repeat(-(-size // noise.numel()))[:size]
    return repeated.view(shape).mul(shape[-1] ** -0.5)
