"""What GGUF files call the weights that Hugging Face's checkpoints hold, architecture by architecture. No torch here.

Source: the tensor name maps of the ggml project's `gguf` package.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from forebay_server.weights.gguf_header import GgufTensor

_COMMON = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
}
_QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI_PACKED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}

_NAMES_BY_ARCHITECTURE = {
    "llama": _COMMON | _MIXTRAL_EXPERTS,
    "qwen2": _COMMON,
    "qwen2moe": _COMMON | _QWEN_EXPERTS,
    "qwen3": _COMMON,
    "qwen3moe": _COMMON | _QWEN_EXPERTS,
    "gemma2": _COMMON | _GEMMA_NORMS,
    "gemma3": _COMMON | _GEMMA_NORMS,
    "phi3": _COMMON | _PHI_PACKED,
    "smollm3": _COMMON,
}
_TENSOR_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


def renamed(tensors: Mapping[str, GgufTensor], architecture: str) -> dict[str, GgufTensor]:
    """The tensors under Hugging Face's names, every expert of a stack by itself; unknown names stay as they are.

    Args:
        tensors: by the file's names.
        architecture: as the file names it.
    """
    names = _NAMES_BY_ARCHITECTURE.get(architecture, _COMMON)
    found: dict[str, GgufTensor] = {}
    for name, tensor in tensors.items():
        match = _TENSOR_NAME.fullmatch(name)
        if match is None or match["part"] not in names:
            found[name] = tensor
            continue
        layer = "" if match["layer"] is None else f"model.layers.{match['layer']}."
        new_name = f"{layer}{names[match['part']]}.{match['kind']}"
        if "{expert}" in new_name and len(tensor.shape) == 3:
            found |= {new_name.format(expert=expert): part for expert, part in enumerate(_experts(tensor))}
        elif new_name.endswith("shared_expert_gate.weight") and len(tensor.shape) == 1:
            found[new_name] = replace(tensor, shape=(1, *tensor.shape))
        else:
            found[new_name] = tensor
    return found


def _experts(stack: GgufTensor) -> Iterator[GgufTensor]:
    """[num_experts, rows, columns] -> each expert's matrix, where it lies in the file."""
    num_experts = stack.shape[0]
    num_bytes = stack.num_bytes // num_experts
    for expert in range(num_experts):
        offset = stack.offset_bytes + expert * num_bytes
        yield replace(stack, shape=stack.shape[1:], offset_bytes=offset, num_bytes=num_bytes)
