"""Writes a compressed-tensors checkpoint: safetensors files, their index and config.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from forebay_server.quantize.model_files import write_json

SHARD_BYTES = 4 << 30


class CheckpointWriter:
    """A checkpoint that is written piece by piece, in files of a few gigabytes.

    Args:
        folder: must exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, torch.Tensor] = {}
        self._waiting_bytes = 0
        self._weight_map: dict[str, str] = {}
        self._total_bytes = 0

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take tensors; a full file is written at once."""
        for name, tensor in tensors.items():
            self._waiting[name] = tensor.contiguous()
            self._waiting_bytes += tensor.numel() * tensor.element_size()
        if self._waiting_bytes >= SHARD_BYTES:
            self.flush()

    def finish(self, config: Mapping[str, Any]) -> int:
        """Write what is left, the index and config.json; returns the bytes of all weights."""
        self.flush()
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": self._weight_map}
        write_json(self._folder / "model.safetensors.index.json", index)
        write_json(self._folder / "config.json", config)
        return self._total_bytes

    @property
    def written(self) -> tuple[dict[str, str], int]:
        """The file of each tensor that is in one, and the bytes of them all."""
        return self._weight_map, self._total_bytes

    def go_on(self, weight_map: dict[str, str], total_bytes: int) -> None:
        """Begin with what another writer has written into the folder."""
        self._weight_map, self._total_bytes = weight_map, total_bytes

    def flush(self) -> None:
        """Write what waits for a file to become full."""
        if not self._waiting:
            return
        name = f"model-{len(set(self._weight_map.values())) + 1:05}.safetensors"
        save_file(self._waiting, self._folder / name, metadata={"format": "pt"})
        self._weight_map |= dict.fromkeys(self._waiting, name)
        self._total_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = {}, 0


def quantization_config(group: Mapping[str, Any], stored_as: str, routers: Sequence[str]) -> dict[str, Any]:
    """What config.json says under `quantization_config`; routers are linear layers that stay as they are."""
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], **group}},
        "ignore": ["lm_head", *routers],
        "kv_cache_scheme": None,
    }
