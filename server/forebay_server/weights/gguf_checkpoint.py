"""A GGUF file as a Checkpoint: weights dequantized one at a time, under Hugging Face names and layout."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from gguf import quants

from forebay_server.layers.weight_forms import LinearWeight, WeightFormat
from forebay_server.models.gguf_config import config_from_gguf
from forebay_server.models.model_config import unsupported
from forebay_server.weights.gguf_header import GgufHeader, GgufTensor, corrupt, read_gguf_header

ROPE_FACTORS = "rope_freqs.weight"

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSOR_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


class GgufCheckpoint:
    """See `Checkpoint`; the header is checked when it is made.

    Raises:
        StartupError: 16 when the file is damaged or cut short, 2 when it cannot be supported, 11 when not readable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = read_gguf_header(path)
        tensors = dict(self._header.tensors)
        factors = tensors.pop(ROPE_FACTORS, None)
        self.config = config_from_gguf(
            self._header.metadata,
            {name: tensor.shape for name, tensor in tensors.items()},
            str(path),
            tuple(self._read(factors).flatten().tolist()) if factors else None,
        )
        self._tensors = {hugging_face_name(name): tensor for name, tensor in tensors.items()}
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self.formats: dict[str, WeightFormat] = {}
        self.total_bytes = sum(tensor.num_bytes for tensor in self._tensors.values())

    @property
    def header(self) -> GgufHeader:
        """Metadata of the file, with the tokenizer."""
        return self._header

    def stored_as(self, name: str) -> str:
        """See `Checkpoint.stored_as`."""
        return self._tensors[name].quantization.name

    def tensors(self) -> Iterator[tuple[str, LinearWeight, int]]:
        """See `Checkpoint.tensors`; every weight is float32."""
        for name, tensor in self._tensors.items():
            weight = self._read(tensor)
            if ".q_proj." in name:
                weight = undo_rope_permutation(weight, self.config.num_heads)
            elif ".k_proj." in name:
                weight = undo_rope_permutation(weight, self.config.num_kv_heads)
            yield name, weight, tensor.num_bytes

    def _read(self, tensor: GgufTensor) -> torch.Tensor:
        """Read and dequantize: [*shape], float32."""
        try:
            raw = np.fromfile(self.path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset_bytes)
        except OSError as error:
            raise corrupt(self.path, f"tensor {tensor.name} cannot be read: {error.strerror}") from error
        if raw.size != tensor.num_bytes:
            raise corrupt(self.path, f"was cut short while tensor {tensor.name} was read")
        try:
            values = quants.dequantize(raw.reshape(*tensor.shape[:-1], -1), tensor.quantization)
        except NotImplementedError as error:
            raise unsupported(
                f"{self.path}: tensor {tensor.name} is stored as {tensor.quantization.name}, which is not supported"
            ) from error
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape))


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; unknown names stay as they are."""
    match = _TENSOR_NAME.fullmatch(name)
    if match is None or match["part"] not in _NAMES:
        return name
    layer = "" if match["layer"] is None else f"model.layers.{match['layer']}."
    return f"{layer}{_NAMES[match['part']]}.{match['kind']}"


def undo_rope_permutation(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Put the rows of each head back into half-split order.

    GGUF files of the llama architecture store the pair (i, i + head_dim / 2) next to each other, for a rotary embedding
    that turns neighbours.

    Args:
        weight: [num_heads * head_dim, ...].
        num_heads: heads of this projection.
    """
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(weight.shape)
