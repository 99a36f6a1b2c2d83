"""A GGUF header to ModelFacts: its keys get their names of config.json, and the architectures do the rest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay_operator.facts.architectures import model_facts
from forebay_operator.facts.config_reader import ConfigReader
from forebay_operator.facts.errors import bad_config, corrupt
from forebay_operator.facts.gguf_header import ArrayLength, GGUFHeader, GGUFTensor, read_gguf_header
from forebay_operator.facts.model_facts import Checkpoint, ModelFacts

MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "deepseek2": "deepseek_v2",
    "gpt-oss": "gpt_oss",
    "smollm3": "smollm3",
}
"""`general.architecture` to `model_type`; where one name covers two, the tensors decide below."""

KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "vocab_size": "vocab_size",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "v_head_dim": "attention.value_length",
}
"""Keys of config.json to those of GGUF, which stand behind the architecture's name."""

PLAIN_TYPES = ("F64", "F32", "F16", "BF16")

KEPT_GROUP = 32
"""Numbers that share scales in the engine's forms for GGUF's types."""

KEPT_BYTES = {"Q4_0": (16, 2), "Q4_1": (16, 4), "Q4_K": (16, 8)}
"""Bytes of such a group and of its scales where the engine keeps four bits; all other quantized types become int8."""
KEPT_AS_INT8 = (32, 4)

ENDS = {"token_embd.weight": "embed_tokens", "output.weight": "lm_head"}

NOT_PARAMETERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are computed, not learned."""


def read_gguf_facts(path: Path) -> ModelFacts:
    """Facts of the model in one GGUF file.

    Raises:
        FactsError: not a sound GGUF file, or an architecture that is not known.
        OSError: the file cannot be opened.
    """
    return facts_of_gguf(read_gguf_header(path), str(path))


def facts_of_gguf(header: GGUFHeader, path: str) -> ModelFacts:
    """Facts from a header.

    Args:
        header: of the file.
        path: the file's name for messages.

    Raises:
        FactsError: an architecture that is not known, or a key is missing or wrong.
    """
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise bad_config(f"{path}: key 'general.architecture' is {architecture!r}, which is not known; known: {known}")
    config = _config(header, architecture, path)
    tensors = [tensor for tensor in header.tensors.values() if tensor.name not in NOT_PARAMETERS]
    stored = sum(tensor.num_elements for tensor in tensors)
    bytes_by_type: dict[str, int] = {}
    for tensor in tensors:
        bytes_by_type[tensor.type_name] = bytes_by_type.get(tensor.type_name, 0) + tensor.num_bytes
    if not bytes_by_type:
        raise corrupt(f"{path}: it has no tensors")
    facts = model_facts(
        config,
        Checkpoint(
            container="gguf",
            format="bf16",  # the engine dequantizes while loading
            file_bytes=sum(bytes_by_type.values()),
            stored_parameters=stored,
            gguf_type=max(bytes_by_type, key=lambda name: bytes_by_type[name]),
            **_kept(tensors),
        ),
    )
    if abs(stored - facts.num_parameters) * 100 > facts.num_parameters:
        raise corrupt(f"{path}: its tensors hold {stored} parameters, its metadata describes {facts.num_parameters}")
    return facts


def _kept(tensors: Sequence[GGUFTensor]) -> dict[str, Any]:
    """What the quantized matrices are and take in the engine's own forms."""
    matrices = [tensor for tensor in tensors if tensor.type_name not in PLAIN_TYPES]
    ends = [tensor for tensor in matrices if tensor.name in ENDS]
    layers = [tensor for tensor in matrices if tensor.name not in ENDS]
    return {
        "gguf_numbers": sum(tensor.num_elements for tensor in matrices),
        "gguf_bytes": sum(_kept_bytes(tensor) for tensor in matrices),
        "gguf_ends": tuple(ENDS[tensor.name] for tensor in ends),
        "gguf_layer_numbers": sum(tensor.num_elements for tensor in layers),
        "gguf_layer_int8": sum(tensor.num_elements for tensor in layers if tensor.type_name not in KEPT_BYTES),
        "gguf_layer_int4_bytes": sum(_kept_bytes(tensor) for tensor in layers if tensor.type_name in KEPT_BYTES),
        "gguf_int8_ends": tuple(ENDS[tensor.name] for tensor in ends if tensor.type_name not in KEPT_BYTES),
    }


def _kept_bytes(tensor: GGUFTensor) -> int:
    numbers, scales = KEPT_BYTES.get(tensor.type_name, KEPT_AS_INT8)
    return tensor.num_elements // KEPT_GROUP * (numbers + scales)


def _config(header: GGUFHeader, architecture: str, path: str) -> ConfigReader:
    """The header's keys under the names of config.json."""
    names = {key: f"{architecture}.{suffix}" for key, suffix in KEYS.items()}
    data: dict[str, Any] = {}
    for key, name in names.items():
        value = header.metadata.get(name)
        if isinstance(value, ArrayLength):
            raise bad_config(f"{path}: key {name!r} differs from layer to layer, which is not supported")
        if value is not None:
            data[key] = value
    if "vocab_size" not in data:
        tokens = header.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, ArrayLength):
            data["vocab_size"] = tokens.length
    data["model_type"] = _model_type(header, architecture)
    data["tie_word_embeddings"] = "output.weight" not in header.tensors
    data["attention_bias"] = "blk.0.attn_output.bias" in header.tensors
    if architecture == "deepseek2":
        _latent_sizes(data, header)
    return ConfigReader(data, path, names)


def _model_type(header: GGUFHeader, architecture: str) -> str:
    """Tell apart what GGUF gives one name."""
    if architecture == "llama" and header.metadata.get("llama.expert_count"):
        return "mixtral"
    if architecture == "deepseek2" and any(name.endswith("exp_probs_b.bias") for name in header.tensors):
        return "deepseek_v3"
    return MODEL_TYPES[architecture]


def _latent_sizes(data: dict[str, Any], header: GGUFHeader) -> None:
    """Sizes of latent attention: newer files say them with `_mla`, older ones in the plain keys."""
    key_length = header.metadata.get("deepseek2.attention.key_length_mla", data.get("head_dim"))
    value_length = header.metadata.get("deepseek2.attention.value_length_mla", data.get("v_head_dim"))
    rope = data.get("qk_rope_head_dim")
    if isinstance(key_length, int) and isinstance(rope, int):
        data["qk_nope_head_dim"] = key_length - rope
    data["v_head_dim"] = value_length
