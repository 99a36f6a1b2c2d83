"""GGUF metadata as a ModelConfig. No torch here.

Source of the keys: the GGUF specification of the ggml project and the constants of its `gguf` package. What the files
leave out (Gemma's patterns and scale) is what llama.cpp assumes.
"""

import math
from collections.abc import Mapping
from typing import Any

from forebay_server.models.model_config import Fields, ModelConfig, MoeConfig, RopeScaling, checked, unsupported
from forebay_server.models.rope_config import gguf_rope_scaling, longest_position, longrope_attention_factor

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "smollm3")
ROPE_FACTORS = "rope_freqs.weight"
LONG_ROPE_FACTORS, SHORT_ROPE_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Tensors that belong to the configuration."""

_LAYERS_WITHOUT_WINDOW = {"gemma2": 2, "gemma3": 6}
"""Every so manieth layer sees everything."""
_LAYERS_THAT_TURN = {"smollm3": 4}
"""All but every so manieth layer turn queries and keys."""
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""The sizes whose scores are scaled by hidden_size / num_heads instead of head_dim."""
_GEMMA3_LOCAL_THETA = 10000.0


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    source: str,
    rope_factors: Mapping[str, tuple[float, ...]] | None = None,
) -> ModelConfig:
    """Read GGUF metadata; what it leaves out (vocabulary, tied head, biases) is told by the tensors that are there.

    Args:
        metadata: of the file.
        tensor_shapes: of its tensors, rows first.
        source: the file, for messages.
        rope_factors: values of the tensors that stretch rotary frequencies, by name.

    Raises:
        StartupError: 16 for a missing or impossible value, 2 for an architecture that is not supported.
    """
    fields = Fields(metadata, source)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise fields.wrong("general.architecture", "the name of an architecture")
    if architecture not in GGUF_ARCHITECTURES:
        names = ", ".join(GGUF_ARCHITECTURES)
        raise unsupported(f"{source}: architecture {architecture!r} is not supported in GGUF files; these are: {names}")
    if metadata.get("split.count", 1) not in (0, 1):
        raise unsupported(
            f"{source}: the model is split over several GGUF files; merge them first (gguf-split --merge)"
        )
    key = architecture + "."
    hidden_size = fields.integer(key + "embedding_length")
    num_heads = fields.integer(key + "attention.head_count")
    head_dim = fields.integer(key + "attention.key_length", max(hidden_size // num_heads, 1))
    rotary_dim = fields.integer(key + "rope.dimension_count", head_dim)
    max_position = fields.integer(key + "context_length")
    factors = rope_factors or {}
    scaling = gguf_rope_scaling(fields, key, max_position)
    if SHORT_ROPE_FACTORS in factors and LONG_ROPE_FACTORS in factors:
        scaling = _longrope(fields, key, max_position, factors)
    embedding_shape = tensor_shapes.get("token_embd.weight", (0,))
    is_gemma = architecture.startswith("gemma")
    return checked(
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
            max_position=longest_position(scaling, max_position),
            rope_theta=fields.number(key + "rope.freq_base", 10000.0),
            rope_scaling=scaling,
            rope_frequency_factors=factors.get(ROPE_FACTORS),
            partial_rotary_dim=None if rotary_dim == head_dim else rotary_dim,
            local_rope_theta=fields.number(key + "rope.freq_base_swa", _GEMMA3_LOCAL_THETA)
            if architecture == "gemma3"
            else None,
            tie_word_embeddings="output.weight" not in tensor_shapes,
            attention_bias="blk.0.attn_q.bias" in tensor_shapes,
            mlp_bias="blk.0.ffn_gate.bias" in tensor_shapes,
            activation="gelu_tanh" if is_gemma else "silu",
            sliding_windows=_windows(fields, key),
            unturned_layers=_unturned(fields, key),
            attention_scale=_gemma_scale(fields, key, head_dim) if is_gemma else None,
            attention_soft_cap=fields.optional_number(key + "attn_logit_softcapping"),
            logit_soft_cap=fields.optional_number(key + "final_logit_softcapping"),
            moe=_moe(fields, key),
            eos_token_ids=fields.token_ids("tokenizer.ggml.eos_token_id")
            + fields.token_ids("tokenizer.ggml.eot_token_id"),
        ),
        source,
    )


def _windows(fields: Fields, key: str) -> tuple[int | None, ...]:
    window = fields.optional_integer(key + "attention.sliding_window")
    if window is None:
        return ()
    period = _LAYERS_WITHOUT_WINDOW.get(key.removesuffix("."), 0)
    num_layers = fields.integer(key + "block_count")
    return tuple(None if period and (layer + 1) % period == 0 else window for layer in range(num_layers))


def _unturned(fields: Fields, key: str) -> frozenset[int]:
    period = _LAYERS_THAT_TURN.get(key.removesuffix("."))
    if period is None:
        return frozenset()
    return frozenset(range(period - 1, fields.integer(key + "block_count"), period))


def _gemma_scale(fields: Fields, key: str, head_dim: int) -> float:
    if fields.integer(key + "block_count") == _LAYERS_OF_27B[key.removesuffix(".")]:
        head_dim = fields.integer(key + "embedding_length") // fields.integer(key + "attention.head_count")
    return 1 / math.sqrt(head_dim)


def _longrope(fields: Fields, key: str, max_position: int, factors: Mapping[str, tuple[float, ...]]) -> RopeScaling:
    original = fields.integer(key + "rope.scaling.original_context_length", max_position)
    return RopeScaling(
        kind="longrope",
        factor=max(max_position / original, 1.0),
        original_max_position=original,
        attention_factor=fields.number(
            key + "rope.scaling.attn_factor", longrope_attention_factor(max_position / original, original)
        ),
        short_factors=factors[SHORT_ROPE_FACTORS],
        long_factors=factors[LONG_ROPE_FACTORS],
    )


def _moe(fields: Fields, key: str) -> MoeConfig | None:
    num_experts = fields.integer(key + "expert_count", 0, minimum=0)
    if not num_experts:
        return None
    dense_size = fields.integer(key + "feed_forward_length")
    is_qwen2 = key == "qwen2moe."
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=fields.integer(key + "expert_used_count"),
        intermediate_size=fields.integer(key + "expert_feed_forward_length", dense_size),
        is_normalized=not is_qwen2,
        is_moe_layer=(True,) * fields.integer(key + "block_count"),
        shared_intermediate_size=fields.integer(key + "expert_shared_feed_forward_length") if is_qwen2 else None,
    )
