"""The tiny models of `tiny_models` as llama.cpp's converter would write them: names from the `gguf` package's maps."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from tests.test_server.models.tiny_llama import permute

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}
_NUMBERS = {
    "max_position_embeddings": "{arch}.context_length",
    "hidden_size": "{arch}.embedding_length",
    "num_hidden_layers": "{arch}.block_count",
    "intermediate_size": "{arch}.feed_forward_length",
    "num_attention_heads": "{arch}.attention.head_count",
    "num_key_value_heads": "{arch}.attention.head_count_kv",
    "head_dim": "{arch}.attention.key_length",
    "rms_norm_eps": "{arch}.attention.layer_norm_rms_epsilon",
    "sliding_window": "{arch}.attention.sliding_window",
    "attn_logit_softcapping": "{arch}.attn_logit_softcapping",
    "final_logit_softcapping": "{arch}.final_logit_softcapping",
    "num_experts": "{arch}.expert_count",
    "num_local_experts": "{arch}.expert_count",
    "num_experts_per_tok": "{arch}.expert_used_count",
    "moe_intermediate_size": "{arch}.expert_feed_forward_length",
    "shared_expert_intermediate_size": "{arch}.expert_shared_feed_forward_length",
}
_PERMUTED = ("llama", "mistral", "mixtral", "smollm3")
_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)\.weight")


def save_as_gguf(folder: Path, path: Path) -> Path:
    """Write the checkpoint of a folder as a GGUF file of float32."""
    config = json.loads((folder / "config.json").read_text())
    arch = _ARCHITECTURES[config["model_type"]]
    arch_name = gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(path, arch_name)
    for key, name in _NUMBERS.items():
        value = config.get(key)
        if isinstance(value, int):
            writer.add_uint32(name.format(arch=arch_name), value)
        elif isinstance(value, float):
            writer.add_float32(name.format(arch=arch_name), value)
    _add_rope(writer, config)
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, weight in _converted(load_file(folder / "model.safetensors"), config).items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        writer.add_tensor(gguf_name, weight.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_rope(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))


def _converted(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Experts stacked, q and k of the llama family permuted, Gemma's norms with their one."""
    found: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    for name, weight in weights.items():
        expert = _EXPERT.fullmatch(name)
        if expert is not None:
            prefix = expert[1].replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward")
            prefix = prefix if "feed_forward" in prefix else expert[1]
            stacks.setdefault(f"{prefix}.experts.{expert[3]}.weight", {})[int(expert[2])] = weight
        elif config["model_type"] in _PERMUTED and ".q_proj." in name:
            found[name] = permute(weight, config["num_attention_heads"])
        elif config["model_type"] in _PERMUTED and ".k_proj." in name:
            found[name] = permute(weight, config["num_key_value_heads"])
        elif config["model_type"].startswith("gemma") and name.endswith("norm.weight"):
            found[name] = weight + 1
        elif name.endswith("shared_expert_gate.weight"):
            found[name] = weight.flatten()
        else:
            found[name] = weight
    return found | {name: torch.stack([stack[i] for i in range(len(stack))]) for name, stack in stacks.items()}
