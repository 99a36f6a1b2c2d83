"""GGUF metadata as a ModelConfig. No torch here.

Source of the keys: the GGUF specification of the ggml project and the constants of its `gguf` package.
"""

from collections.abc import Mapping
from typing import Any

from forebay_server.models.model_config import Fields, ModelConfig, MoeConfig, checked, unsupported
from forebay_server.models.rope_config import gguf_rope_scaling, longest_position

GGUF_ARCHITECTURES = ("llama",)


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    source: str,
    rope_frequency_factors: tuple[float, ...] | None = None,
) -> ModelConfig:
    """Read GGUF metadata; what it leaves out (vocabulary, tied head, biases) is told by the tensors that are there.

    Args:
        metadata: of the file.
        tensor_shapes: of its tensors, rows first.
        source: the file, for messages.
        rope_frequency_factors: each rotary frequency is divided by its factor.

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
    scaling = gguf_rope_scaling(fields, key, max_position)
    embedding_shape = tensor_shapes.get("token_embd.weight", (0,))
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
            rope_frequency_factors=rope_frequency_factors,
            partial_rotary_dim=None if rotary_dim == head_dim else rotary_dim,
            tie_word_embeddings="output.weight" not in tensor_shapes,
            attention_bias="blk.0.attn_q.bias" in tensor_shapes,
            mlp_bias="blk.0.ffn_gate.bias" in tensor_shapes,
            moe=_moe(fields, key),
            eos_token_ids=fields.token_ids("tokenizer.ggml.eos_token_id")
            + fields.token_ids("tokenizer.ggml.eot_token_id"),
        ),
        source,
    )


def _moe(fields: Fields, key: str) -> MoeConfig | None:
    num_experts = fields.integer(key + "expert_count", 0, minimum=0)
    if not num_experts:
        return None
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=fields.integer(key + "expert_used_count"),
        intermediate_size=fields.integer(
            key + "expert_feed_forward_length", fields.integer(key + "feed_forward_length")
        ),
        is_normalized=True,
        is_moe_layer=(True,) * fields.integer(key + "block_count"),
    )
