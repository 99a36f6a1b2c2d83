"""ModelFacts: everything the planner needs to know of a model, small enough for a termination message."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from forebay_operator.facts.errors import bad_config

Split = Literal["none", "rows", "cols", "heads", "head_cols", "kv_heads", "vocab"]
"""How tensor parallelism cuts a matrix [rows, cols]: not at all (every rank holds it all), its rows, its columns,
its rows or columns by attention heads, its rows by KV heads (repeated when there are fewer than ranks), its
rows by vocabulary."""

Dtype = Literal["float32", "bfloat16", "float16"]
"""Numbers of the unquantized tensors."""

CheckpointFormat = Literal[
    "float32", "bf16", "fp16", "fp8", "fp8-block", "int8", "int4", "gptq", "awq", "mxfp4", "nvfp4"
]
"""Numbers of the linear layers as the files hold them. `fp8`, `int8`, `int4`: compressed-tensors and the like."""

KVKind = Literal["full", "sliding", "latent"]
"""full: keys and values of all tokens. sliding: of the last `window` tokens. latent: one vector a token (MLA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """Equal matrices [rows, cols] that lie at the same place of every layer; vectors have one column."""

    name: str
    rows: int
    cols: int
    layers: int = 0
    """Layers that have it; 0: it stands once, outside the layers."""
    copies: int = 1
    """How often it stands in one layer (experts, or gate and up together)."""
    active: int | None = None
    """Copies that one token passes through; None: all."""
    split: Split = "none"
    quantizable: bool = False
    """A linear layer that quantized checkpoints and quantization at load time convert."""

    @property
    def parameters(self) -> int:
        """Numbers in all copies of all layers."""
        return max(self.layers, 1) * self.copies * self.rows * self.cols

    @property
    def active_parameters(self) -> int:
        """Numbers that one token passes through."""
        copies = self.copies if self.active is None else self.active
        return max(self.layers, 1) * copies * self.rows * self.cols


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayers:
    """Layers whose cache has one shape."""

    layers: int
    kind: KVKind
    num_kv_heads: int
    """1 for latent layers."""
    head_dim: int
    """Numbers a head keeps for a key (and as many for a value); for latent layers the whole vector, kept once."""
    window: int = 0
    """Tokens that stay in the cache; only for sliding layers."""

    @property
    def numbers_per_token(self) -> int:
        """Numbers one token adds in all these layers, before tensor parallelism."""
        vectors = 1 if self.kind == "latent" else 2
        return self.layers * vectors * self.num_kv_heads * self.head_dim

    @property
    def scales_per_token(self) -> int:
        """Scales one token adds when the cache is quantized per token and head."""
        return self.numbers_per_token // self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files, as their metadata describes them."""

    container: Literal["safetensors", "gguf", "none"]
    """none: only a configuration is known."""
    format: CheckpointFormat
    bits: int = 0
    """Of one packed weight (GPTQ: 4 or 8); 0: what the format's name says."""
    group_size: int = 0
    """Columns that share a scale (GPTQ, AWQ, int4, MXFP4, NVFP4); 0: none; -1: a whole row."""
    block: int = 0
    """Edge of a square block that shares a scale (block FP8)."""
    zero_points: bool = False
    """Groups have a zero of their own; without it all zeros are in the middle."""
    act_order: bool = False
    """The columns of a group lie apart, so that their order is kept, too."""
    file_bytes: int = 0
    """Bytes of all tensors on disk; 0: not known."""
    stored_parameters: int = 0
    """Numbers in the files' unpacked tensors; 0: not known, or packed."""
    gguf_type: str = ""
    """The type that most bytes of a GGUF file have, such as Q4_1."""
    gguf_numbers: int = 0
    """Numbers in the quantized matrices of a GGUF file."""
    gguf_bytes: int = 0
    """What these take when the engine keeps them quantized."""
    gguf_ends: tuple[str, ...] = ()
    """Those of embed_tokens and lm_head that are among them."""
    gguf_layer_numbers: int = 0
    """Numbers of those that lie in layers."""
    gguf_layer_int8: int = 0
    """Of these, numbers that the engine keeps in eight bits, by 32."""
    gguf_layer_int4_bytes: int = 0
    """What the others take, which it keeps in four."""
    gguf_int8_ends: tuple[str, ...] = ()
    """Ends that it keeps in eight bits."""
    kv_cache_dtype: Literal["", "fp8", "int8"] = ""
    """A KV format that the checkpoint brings scales for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model: its sizes, the matrices that it holds, the cache that its layers keep."""

    architecture: str
    """`model_type` of config.json, in its own spelling."""
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of the widest feed-forward part that one token passes through (experts counted together)."""
    vocab_size: int
    max_positions: int
    """Longest context that the model was made for, with its RoPE scaling."""
    dtype: Dtype
    tied_embeddings: bool
    tensors: tuple[TensorGroup, ...]
    kv_layers: tuple[KVLayers, ...]
    checkpoint: Checkpoint

    @property
    def num_parameters(self) -> int:
        """All numbers; a tied head counts once."""
        return sum(group.parameters for group in self.tensors)

    @property
    def num_active_parameters(self) -> int:
        """Numbers that one token is multiplied with; the embedding table is looked up, not multiplied."""
        active = sum(group.active_parameters for group in self.tensors)
        return active if self.tied_embeddings else active - self.vocab_size * self.hidden_size

    def to_json(self) -> str:
        """One line of JSON, at most 4 KiB: default values are left out."""
        return json.dumps(_without_defaults(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read back what `to_json` wrote.

        Raises:
            FactsError: a key is missing, unknown or of the wrong kind.
        """
        try:
            data = json.loads(text)
            if not isinstance(data, dict):
                raise bad_config(f"model facts: expected an object, got {type(data).__name__}")
            return cls.from_dict(data)
        except json.JSONDecodeError as error:
            raise bad_config(f"model facts: not JSON: {error}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The same from an object that is already parsed (`status.model`)."""
        values = dict(data)
        try:
            values["tensors"] = tuple(TensorGroup(**group) for group in data["tensors"])
            values["kv_layers"] = tuple(KVLayers(**layers) for layers in data["kv_layers"])
            checkpoint = dict(data["checkpoint"])
            for name in ("gguf_ends", "gguf_int8_ends"):
                checkpoint[name] = tuple(checkpoint.get(name, ()))
            values["checkpoint"] = Checkpoint(**checkpoint)
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise bad_config(f"model facts: {error}") from None


def _without_defaults(facts: ModelFacts) -> dict[str, Any]:
    """The facts as plain data, with every field left out that equals its class's default."""
    data = asdict(facts)
    data["tensors"] = [_slim(group) for group in facts.tensors]
    data["kv_layers"] = [_slim(layers) for layers in facts.kv_layers]
    data["checkpoint"] = _slim(facts.checkpoint)
    return data


def _slim(part: TensorGroup | KVLayers | Checkpoint) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) != f.default}
