"""ModelConfig: the facts of a model that its architecture's file needs, however the checkpoint tells them. No torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forebay_server.errors import ExitCode, StartupError

HUGE = 1 << 31
"""No size in a model's description is larger; more means a damaged file."""

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the rotary frequencies are stretched for long contexts (`layers/rotary_embedding.py`)."""

    kind: Literal["linear", "llama3", "yarn", "longrope", "dynamic"]
    factor: float = 1.0
    original_max_position: int = 8192
    """Context that the model was first trained for."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    """llama3: full turns within the original context below and above which a frequency is stretched and kept."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """yarn: full turns within the original context above and below which a frequency is kept and stretched."""
    is_truncated: bool = True
    """yarn: whether the bounds that follow from the betas are rounded outwards to whole dimensions."""
    attention_factor: float = 1.0
    """yarn and longrope: cosines and sines are multiplied with it."""
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    """longrope: each frequency is divided by its factor; [rotary_dim / 2]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The mixture of experts that replaces the feed-forward part of some layers."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    is_normalized: bool
    """Whether the weights of a token's experts are made to sum to 1."""
    is_moe_layer: tuple[bool, ...]
    """For each layer: experts, or one dense feed-forward part."""
    shared_intermediate_size: int | None = None
    """Of the expert that every token uses; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a decoder-only model looks like."""

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
    """GGUF: each rotary frequency is divided by its factor; [rotary_dim / 2]."""
    partial_rotary_dim: int | None = None
    """How many dimensions of each head turn; None: all."""
    unturned_layers: frozenset[int] = frozenset()
    """Layers without rotary positions: they tell tokens apart by the mask alone."""
    local_rope_theta: float | None = None
    """Gemma 3: rotary base of the layers with a sliding window, which are not scaled; None: as the others."""
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    activation: Activation = "silu"
    sliding_windows: tuple[int | None, ...] = ()
    """For each layer how many tokens a token sees, itself included; None: all. Empty: every layer sees all."""
    attention_scale: float | None = None
    """Scores are multiplied with it; None: 1 / sqrt(head_dim)."""
    attention_soft_cap: float | None = None
    """Scores s become cap * tanh(s / cap)."""
    logit_soft_cap: float | None = None
    moe: MoeConfig | None = None
    dtype: str | None = None
    """What the checkpoint says that it was trained in."""
    eos_token_ids: tuple[int, ...] = ()

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of each head turn."""
        return self.head_dim if self.partial_rotary_dim is None else self.partial_rotary_dim

    def sliding_window(self, layer: int) -> int | None:
        """How many tokens a token of this layer sees; None: all."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    def turns(self, layer: int) -> bool:
        """Whether queries and keys of this layer turn by their positions."""
        return layer not in self.unturned_layers

    def rotary_table(self, layer: int) -> int:
        """Which of the tables of `rotary_tables` this layer reads."""
        return int(self.local_rope_theta is not None and self.sliding_window(layer) is not None)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether this layer has experts."""
        return self.moe is not None and self.moe.is_moe_layer[layer]


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

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number from `minimum` on."""
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < HUGE:
            raise self.wrong(key, f"a whole number above {minimum - 1}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.wrong(key, "a finite number above 0")
        return float(value)

    def optional_integer(self, key: str) -> int | None:
        """A whole number above 0, or None when it is not there or 0."""
        return self.integer(key, minimum=0) or None if self.has(key) else None

    def optional_number(self, key: str) -> float | None:
        """A finite number above 0, or None when it is not there."""
        return self.number(key) if self.has(key) else None

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of that many finite numbers above 0."""
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) != length or not all(map(_is_positive, value)):
            raise self.wrong(key, f"a list of {length} finite numbers above 0")
        return tuple(map(float, value))

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            value = default
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


def unsupported(message: str) -> StartupError:
    """The error for a model that is sound but that this engine cannot run."""
    return StartupError(ExitCode.BAD_CONFIGURATION, "UnsupportedModel", message)


def checked(config: ModelConfig, source: str) -> ModelConfig:
    """Refuse sizes that contradict one another.

    Raises:
        StartupError: 16, naming the file and the sizes.
    """
    if config.num_heads % config.num_kv_heads:
        what = f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly"
    elif config.rotary_dim % 2 or config.rotary_dim > config.head_dim:
        what = f"{config.rotary_dim} of {config.head_dim} dimensions turn; the rotary embedding needs pairs of a head"
    elif any(token >= config.vocab_size for token in config.eos_token_ids):
        what = f"the end-of-sequence token {max(config.eos_token_ids)} is outside the vocabulary of {config.vocab_size}"
    elif config.rope_frequency_factors and len(config.rope_frequency_factors) != config.rotary_dim // 2:
        what = f"{len(config.rope_frequency_factors)} rotary factors for {config.rotary_dim} turning dimensions"
    elif config.rope_scaling and len(config.rope_scaling.long_factors) not in (0, config.rotary_dim // 2):
        what = f"{len(config.rope_scaling.long_factors)} rotary factors for {config.rotary_dim} turning dimensions"
    elif config.moe and config.moe.num_experts_per_token > config.moe.num_experts:
        what = f"{config.moe.num_experts_per_token} experts a token, but only {config.moe.num_experts} experts"
    else:
        return config
    raise StartupError(ExitCode.CORRUPT_WEIGHTS, "CorruptWeights", f"{source}: {what}")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
