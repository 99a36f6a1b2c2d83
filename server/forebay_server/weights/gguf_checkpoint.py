"""A GGUF file as a Checkpoint: weights read one at a time, under Hugging Face names and in its layout."""

from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np
import torch

from forebay_server.layers.weight_forms import LinearWeight, WeightFormat, dequantize, select_rows
from forebay_server.models.gguf_config import LONG_ROPE_FACTORS, ROPE_FACTORS, SHORT_ROPE_FACTORS, config_from_gguf
from forebay_server.models.model_config import unsupported
from forebay_server.weights.gguf_blocks import decode, suitable_format
from forebay_server.weights.gguf_header import GgufHeader, GgufTensor, corrupt, read_gguf_header
from forebay_server.weights.gguf_names import renamed


class GgufCheckpoint:
    """See `Checkpoint`; the header is checked when it is made.

    Raises:
        StartupError: 16 when the file is damaged or cut short, 2 when it cannot be supported, 11 when not readable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = read_gguf_header(path)
        tensors = dict(self._header.tensors)
        factors = {
            name: tuple(self._read(tensors.pop(name)).flatten().tolist())
            for name in (ROPE_FACTORS, LONG_ROPE_FACTORS, SHORT_ROPE_FACTORS)
            if name in tensors
        }
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.config = config_from_gguf(self._header.metadata, shapes, str(path), factors)
        self._tensors = renamed(tensors, self.config.architecture)
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self.formats: dict[str, WeightFormat] = {}
        for name, tensor in self._tensors.items():
            suitable = suitable_format(tensor.quantization)
            if suitable is not None:
                self.formats[name] = suitable
        self.total_bytes = sum(tensor.num_bytes for tensor in self._tensors.values())

    @property
    def header(self) -> GgufHeader:
        """Metadata of the file, with the tokenizer."""
        return self._header

    def stored_as(self, name: str) -> str:
        """See `Checkpoint.stored_as`."""
        return self._tensors[name].quantization.name

    def tensors(self, names: Container[str] | None = None) -> Iterator[tuple[str, LinearWeight, int]]:
        """See `Checkpoint.tensors`; a weight is in a form that holds its blocks exactly, or in float32."""
        for name, tensor in self._tensors.items():
            if names is None or name in names:
                yield name, self._as_hugging_face(name, self._decode(tensor)), tensor.num_bytes

    def _as_hugging_face(self, name: str, weight: LinearWeight) -> LinearWeight:
        """Undo what converters change in the numbers of some architectures."""
        if self.config.architecture in ("llama", "smollm3") and (".q_proj." in name or ".k_proj." in name):
            num_heads = self.config.num_heads if ".q_proj." in name else self.config.num_kv_heads
            return select_rows(weight, undo_rope_permutation(torch.arange(self.shapes[name][0]), num_heads))
        if (
            isinstance(weight, torch.Tensor)
            and self.config.architecture.startswith("gemma")
            and name.endswith("norm.weight")
        ):
            return weight.float() - 1  # files hold the multiplier, Hugging Face its distance from one
        return weight

    def _read(self, tensor: GgufTensor) -> torch.Tensor:
        """Read and dequantize: [*shape], float32."""
        return dequantize(self._decode(tensor))

    def _decode(self, tensor: GgufTensor) -> LinearWeight:
        """Read, without any loss."""
        try:
            raw = np.fromfile(self.path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset_bytes)
        except OSError as error:
            raise corrupt(self.path, f"tensor {tensor.name} cannot be read: {error.strerror}") from error
        if raw.size != tensor.num_bytes:
            raise corrupt(self.path, f"was cut short while tensor {tensor.name} was read")
        try:
            return decode(raw, tensor.quantization, tensor.shape)
        except NotImplementedError as error:
            raise unsupported(
                f"{self.path}: tensor {tensor.name} is stored as {tensor.quantization.name}, which is not supported"
            ) from error


def undo_rope_permutation(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Put the rows of each head back into half-split order.

    GGUF files of the llama family store the pair (i, i + head_dim / 2) next to each other, for a rotary embedding
    that turns neighbours.

    Args:
        weight: [num_heads * head_dim, ...].
        num_heads: heads of this projection.
    """
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(weight.shape)
