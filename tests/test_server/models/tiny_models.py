"""Models of every supported architecture, tiny and random, written to disk by transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE: dict[str, Any] = {"moe_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 2}
GEMMA: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8}
PHI4_MINI_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.5, 2.0, 3.0, 5.0, 9.0, 17.0],
    "original_max_position_embeddings": 32,
    "partial_rotary_factor": 0.75,
}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EYES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "qwen2 yarn": ("qwen2", {"rope_parameters": YARN | {"rope_theta": 1e6}}),
    "qwen2_moe": ("qwen2_moe", MOE | {"shared_expert_intermediate_size": 80, "decoder_sparse_step": 2}),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3 bias": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", MOE | {"head_dim": 32, "norm_topk_prob": True, "mlp_only_layers": [0]}),
    "gemma2": ("gemma2", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", GEMMA | {"num_hidden_layers": 7}),
    "gemma3 with images": (
        "gemma3",
        {"text_config": GEMMA | {"num_hidden_layers": 7}, "vision_config": EYES, "mm_tokens_per_image": 4},
    ),
    "mistral3 with images": (
        "mistral3",
        {"text_config": {"model_type": "mistral", "head_dim": 24}, "vision_config": EYES | {"model_type": "pixtral"}},
    ),
    "phi3": ("phi3", {"sliding_window": 8}),
    "smollm3": ("smollm3", {"tie_word_embeddings": True}),
    "smollm3 window": ("smollm3", {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 8}),
    "phi4 mini": ("phi3", {"rope_parameters": PHI4_MINI_ROPE | {"rope_theta": 10000.0}, "tie_word_embeddings": True}),
}
"""By name: the `model_type` of transformers, and what differs from `SIZES`; in `text_config` where there is one."""


def save_tiny(folder: Path, name: str, **changes: Any) -> tuple[Path, PreTrainedModel]:
    """Write a model of `ARCHITECTURES` and return it as transformers runs it, in float32.

    Args:
        folder: made if it is not there.
        name: in `ARCHITECTURES`.
        **changes: of the configuration.
    """
    model_type, own = ARCHITECTURES[name]
    values = SIZES | own | changes
    make: Any = AutoModelForCausalLM.from_config
    if "text_config" in own:
        values = {**own, "text_config": SIZES | own["text_config"] | changes}
        make = AutoModelForImageTextToText.from_config
    config = AutoConfig.for_model(model_type, **values)
    torch.manual_seed(len(name))
    model: PreTrainedModel = make(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2 if "embed" in parameter_name else 1.3 * parameter.shape[-1] ** -0.5)
            else:  # norms and biases: far enough from what they start as to show when left out
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return folder, model


def change_config(folder: Path, **changes: Any) -> None:
    """Change `config.json`; None takes a key out."""
    file = folder / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
