"""ModelConfig: the facts of a model, from `config.json` or from GGUF metadata, every field checked. No torch here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forebay_server.errors import ExitCode, StartupError

HUGE = 1 << 31
"""No size in a model's description is larger; more means a damaged file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the rotary frequencies are stretched for long contexts."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a decoder-only model of the Llama kind looks like."""

    architecture: str
    """As the checkpoint names it: `LlamaForCausalLM`, or `llama` in GGUF."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    """Longest context that the model was made for."""
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rope_frequency_factors: tuple[float, ...] | None = None
    """GGUF: each rotary frequency is divided by its factor; [head_dim / 2]."""
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str | None = None
    """What the checkpoint says that it was trained in."""
    eos_token_ids: tuple[int, ...] = ()


class Fields:
    """Typed, checked access to a model's description; every complaint names the file and the key.

    Args:
        values: the parsed `config.json`, or GGUF metadata.
        source: the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def wrong(self, key: str, wanted: str) -> StartupError:
        """The error for one key."""
        found = repr(self.values[key]) if key in self.values else "missing"
        return StartupError(
            ExitCode.CORRUPT_WEIGHTS, "CorruptWeights", f"{self.source}: {key} is {found[:80]}; it must be {wanted}"
        )

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < HUGE:
            raise self.wrong(key, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.wrong(key, "a finite number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false; false when it is not there."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id, several, or none."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < HUGE for token in ids):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(ids)


def config_from_hugging_face(values: Mapping[str, Any], source: str) -> ModelConfig:
    """Read a parsed `config.json`.

    Raises:
        StartupError: 16 for a missing or impossible value, 2 for what this engine cannot do.
    """
    fields = Fields(values, source)
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise fields.wrong("architectures", "a list with the name of the model's class")
    if values.get("quantization_config") is not None:
        raise unsupported(f"{source}: the checkpoint is quantized (quantization_config), which is not supported yet")
    if values.get("hidden_act", "silu") != "silu":
        raise unsupported(f"{source}: hidden_act is {values['hidden_act']!r}; only silu is supported")
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rope = Fields(_rope_values(fields), source)
    dtype = values.get("dtype", values.get("torch_dtype"))
    return _checked(
        ModelConfig(
            architecture=architectures[0],
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_dim=fields.integer("head_dim", max(hidden_size // num_heads, 1)),
            rms_norm_eps=fields.number("rms_norm_eps"),
            max_position=fields.integer("max_position_embeddings"),
            rope_theta=rope.number("rope_theta", 10000.0),
            rope_scaling=_rope_scaling(rope),
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            dtype=dtype if isinstance(dtype, str) else None,
            eos_token_ids=fields.token_ids("eos_token_id"),
        ),
        source,
    )


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    source: str,
    rope_frequency_factors: tuple[float, ...] | None = None,
) -> ModelConfig:
    """Read GGUF metadata; what it leaves out (vocabulary, tied head, biases) is told by the tensors that are there.

    Raises:
        StartupError: 16 for a missing or impossible value, 2 for an architecture that is not supported.
    """
    fields = Fields(metadata, source)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise fields.wrong("general.architecture", "the name of an architecture")
    if architecture != "llama" or f"{architecture}.expert_count" in metadata:
        raise unsupported(f"{source}: architecture {architecture!r} is not supported in GGUF files; llama is")
    if metadata.get("split.count", 1) not in (0, 1):
        raise unsupported(
            f"{source}: the model is split over several GGUF files; merge them first (gguf-split --merge)"
        )
    key = architecture + "."
    hidden_size = fields.integer(key + "embedding_length")
    num_heads = fields.integer(key + "attention.head_count")
    head_dim = fields.integer(key + "attention.key_length", max(hidden_size // num_heads, 1))
    if fields.integer(key + "rope.dimension_count", head_dim) != head_dim:
        raise unsupported(f"{source}: rotary embedding over a part of each head is not supported")
    embedding_shape = tensor_shapes.get("token_embd.weight", (0,))
    return _checked(
        ModelConfig(
            architecture=architecture,
            vocab_size=fields.integer(key + "vocab_size", embedding_shape[0]),
            hidden_size=hidden_size,
            intermediate_size=fields.integer(key + "feed_forward_length"),
            num_layers=fields.integer(key + "block_count"),
            num_heads=num_heads,
            num_kv_heads=fields.integer(key + "attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=fields.number(key + "attention.layer_norm_rms_epsilon"),
            max_position=fields.integer(key + "context_length"),
            rope_theta=fields.number(key + "rope.freq_base", 10000.0),
            rope_scaling=_gguf_rope_scaling(fields, key),
            rope_frequency_factors=rope_frequency_factors,
            tie_word_embeddings="output.weight" not in tensor_shapes,
            attention_bias="blk.0.attn_q.bias" in tensor_shapes,
            mlp_bias="blk.0.ffn_gate.bias" in tensor_shapes,
            eos_token_ids=fields.token_ids("tokenizer.ggml.eos_token_id")
            + fields.token_ids("tokenizer.ggml.eot_token_id"),
        ),
        source,
    )


def unsupported(message: str) -> StartupError:
    """The error for a model that is sound but that this engine cannot run."""
    return StartupError(ExitCode.BAD_CONFIGURATION, "UnsupportedModel", message)


def _rope_values(fields: Fields) -> dict[str, Any]:
    """One mapping from the two ways in which `config.json` tells the rotary settings (new: `rope_parameters`)."""
    values: dict[str, Any] = {"rope_theta": fields.values.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        part = fields.values.get(key)
        if part is not None:
            if not isinstance(part, dict):
                raise fields.wrong(key, "an object")
            values |= part
    return values


def _rope_scaling(rope: Fields) -> RopeScaling | None:
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.number("factor"))
    if kind == "llama3":
        scaling = RopeScaling(
            kind="llama3",
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position=rope.integer("original_max_position_embeddings"),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise rope.wrong("high_freq_factor", "above low_freq_factor")
        return scaling
    raise unsupported(f"{rope.source}: rope scaling {kind!r} is not supported; default, linear and llama3 are")


def _gguf_rope_scaling(fields: Fields, key: str) -> RopeScaling | None:
    kind = fields.values.get(key + "rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=fields.number(key + "rope.scaling.factor"))
    raise unsupported(f"{fields.source}: rope scaling {kind!r} is not supported in GGUF files; linear is")


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    """Refuse sizes that contradict one another."""
    if config.num_heads % config.num_kv_heads:
        what = f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly"
    elif config.head_dim % 2:
        what = f"heads of {config.head_dim} dimensions are odd; the rotary embedding needs pairs"
    elif any(token >= config.vocab_size for token in config.eos_token_ids):
        what = f"the end-of-sequence token {max(config.eos_token_ids)} is outside the vocabulary of {config.vocab_size}"
    elif config.rope_frequency_factors and len(config.rope_frequency_factors) != config.head_dim // 2:
        what = f"{len(config.rope_frequency_factors)} rotary factors for heads of {config.head_dim} dimensions"
    else:
        return config
    raise StartupError(ExitCode.CORRUPT_WEIGHTS, "CorruptWeights", f"{source}: {what}")
