"""A parsed `config.json` as a ModelConfig: what all architectures write alike, then what each adds. No torch here."""

from collections.abc import Callable, Mapping
from typing import Any

from forebay_server.models.model_config import Activation, Fields, ModelConfig, MoeConfig, checked, unsupported
from forebay_server.models.rope_config import local_rope_theta, longest_position, rope_fields, rope_scaling

TEXT_PARTS = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
}
"""Models that see images, too, and the class of the part that reads and writes text."""
_GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
"""Published files leave out what their class takes for granted."""

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def config_from_hugging_face(values: Mapping[str, Any], source: str) -> ModelConfig:
    """Read a parsed `config.json`.

    Args:
        values: the JSON object.
        source: the file, for messages.

    Raises:
        StartupError: 16 for a missing or impossible value, 2 for what this engine cannot do.
    """
    architecture = _architecture(values, source)
    if architecture in TEXT_PARTS:
        values, architecture = _text_part(values, source), TEXT_PARTS[architecture]
    if architecture == "Gemma3ForCausalLM":
        values = {**_GEMMA3_DEFAULTS, **values}
    fields = Fields(values, source)
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", max(hidden_size // num_heads, 1))
    max_position = fields.integer("max_position_embeddings")
    rope = rope_fields(fields)
    rotary_dim = int(head_dim * rope.number("partial_rotary_factor", 1.0))
    scaling = rope_scaling(rope, rotary_dim, max_position)
    dtype = values.get("dtype", values.get("torch_dtype"))
    common: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_layers": fields.integer("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer("num_key_value_heads", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "max_position": longest_position(scaling, max_position),
        "rope_theta": rope.number("rope_theta", 10000.0),
        "rope_scaling": scaling,
        "partial_rotary_dim": None if rotary_dim == head_dim else rotary_dim,
        "tie_word_embeddings": fields.flag("tie_word_embeddings", default=architecture.startswith("Gemma")),
        "attention_bias": fields.flag("attention_bias"),
        "mlp_bias": fields.flag("mlp_bias"),
        "activation": _activation(fields),
        "dtype": dtype if isinstance(dtype, str) else None,
        "eos_token_ids": fields.token_ids("eos_token_id"),
    }
    own = _OWN_FACTS.get(architecture, _no_facts)(fields)
    return checked(ModelConfig(**(common | own)), source)


def _architecture(values: Mapping[str, Any], source: str) -> str:
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise Fields(values, source).wrong("architectures", "a list with the name of the model's class")
    return architectures[0]


def _text_part(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The configuration of the part that reads and writes text, with what the whole says for all parts."""
    text = values.get("text_config")
    if not isinstance(text, dict):
        raise Fields(values, source).wrong("text_config", "an object")
    own = {key: value for key, value in text.items() if value is not None}
    common = {key: values[key] for key in ("dtype", "torch_dtype", "eos_token_id") if values.get(key) is not None}
    ties = {key: values[key] for key in ("tie_word_embeddings",) if values.get(key) is not None}
    return common | own | ties


def _no_facts(fields: Fields) -> dict[str, Any]:
    return {}


def _mistral(fields: Fields) -> dict[str, Any]:
    return {"sliding_windows": _windows(fields, is_sliding=lambda _: True)}


def _qwen2(fields: Fields) -> dict[str, Any]:
    """Qwen 2 has biases on q, k and v, whether the file says so or not; `qwen2.py` knows."""
    return {"sliding_windows": _qwen_windows(fields)}


def _qwen2_moe(fields: Fields) -> dict[str, Any]:
    shared = fields.integer("shared_expert_intermediate_size")
    return {"sliding_windows": _qwen_windows(fields), "moe": _qwen_moe(fields, shared)}


def _qwen3_moe(fields: Fields) -> dict[str, Any]:
    windows = _windows(fields, is_sliding=lambda _: True) if fields.flag("use_sliding_window") else ()
    return {"sliding_windows": windows, "moe": _qwen_moe(fields, None)}


def _smollm3(fields: Fields) -> dict[str, Any]:
    """Most layers turn; those that do not may have a window. `no_rope_layers` has a 1 where a layer turns."""
    num_layers, period = fields.integer("num_hidden_layers"), fields.integer("no_rope_layer_interval", 4)
    turns = fields.values.get("no_rope_layers") or [int((layer + 1) % period != 0) for layer in range(num_layers)]
    if not isinstance(turns, list) or len(turns) != num_layers or not all(turn in (0, 1) for turn in turns):
        raise fields.wrong("no_rope_layers", f"a list of {num_layers} times 0 or 1")
    unturned = frozenset(layer for layer, turn in enumerate(turns) if not turn)
    has_windows = fields.flag("use_sliding_window")
    return {
        "unturned_layers": unturned,
        "sliding_windows": _windows(fields, is_sliding=lambda layer: layer in unturned) if has_windows else (),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", default=True),
    }


def _mixtral(fields: Fields) -> dict[str, Any]:
    return {
        "sliding_windows": _windows(fields, is_sliding=lambda _: True),
        "moe": MoeConfig(
            num_experts=fields.integer("num_local_experts"),
            num_experts_per_token=fields.integer("num_experts_per_tok"),
            intermediate_size=fields.integer("intermediate_size"),
            is_normalized=True,
            is_moe_layer=(True,) * fields.integer("num_hidden_layers"),
        ),
    }


def _gemma2(fields: Fields) -> dict[str, Any]:
    """Every second layer, the first among them, sees a window."""
    return {
        "sliding_windows": _windows(fields, is_sliding=lambda layer: layer % 2 == 0),
        "attention_scale": fields.number("query_pre_attn_scalar") ** -0.5,
        "attention_soft_cap": fields.optional_number("attn_logit_softcapping"),
        "logit_soft_cap": fields.optional_number("final_logit_softcapping"),
    }


def _gemma3(fields: Fields) -> dict[str, Any]:
    """All but every sixth layer see a window, and turn at another rate."""
    if fields.flag("use_bidirectional_attention"):
        raise unsupported(f"{fields.source}: use_bidirectional_attention is true; only causal attention is supported")
    pattern = fields.integer("sliding_window_pattern", 6)
    return {
        "sliding_windows": _windows(fields, is_sliding=lambda layer: (layer + 1) % pattern != 0),
        "local_rope_theta": local_rope_theta(fields),
        "attention_scale": fields.number("query_pre_attn_scalar") ** -0.5,
        "attention_soft_cap": fields.optional_number("attn_logit_softcapping"),
        "logit_soft_cap": fields.optional_number("final_logit_softcapping"),
    }


_OWN_FACTS: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "MistralForCausalLM": _mistral,
    "Phi3ForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen2,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "MixtralForCausalLM": _mixtral,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "SmolLM3ForCausalLM": _smollm3,
}


def _activation(fields: Fields) -> Activation:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.values.get(key, "silu")
    if name not in _ACTIVATIONS:
        raise unsupported(
            f"{fields.source}: {key} is {name!r}, which is not supported; these are: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _windows(fields: Fields, is_sliding: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of every layer that `layer_types` names or, in older files, the architecture's rule."""
    window = fields.optional_integer("sliding_window")
    if window is None:
        return ()
    num_layers = fields.integer("num_hidden_layers")
    types = fields.values.get("layer_types")
    if types is None:
        return tuple(window if is_sliding(layer) else None for layer in range(num_layers))
    known = {"full_attention": None, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in known for kind in types):
        raise fields.wrong("layer_types", f"a list of {num_layers} times full_attention or sliding_attention")
    return tuple(known[kind] for kind in types)


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """Off unless asked for; then the layers from `max_window_layers` on."""
    if not fields.flag("use_sliding_window"):
        return ()
    first = fields.integer("max_window_layers", 28, minimum=0)
    return _windows(fields, is_sliding=lambda layer: layer >= first)


def _qwen_moe(fields: Fields, shared_intermediate_size: int | None) -> MoeConfig:
    num_layers, step = fields.integer("num_hidden_layers"), fields.integer("decoder_sparse_step", 1)
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise fields.wrong("mlp_only_layers", "a list of layer numbers")
    return MoeConfig(
        num_experts=fields.integer("num_experts" if fields.has("num_experts") else "num_local_experts"),
        num_experts_per_token=fields.integer("num_experts_per_tok"),
        intermediate_size=fields.integer("moe_intermediate_size"),
        is_normalized=fields.flag("norm_topk_prob"),
        is_moe_layer=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)),
        shared_intermediate_size=shared_intermediate_size,
    )
