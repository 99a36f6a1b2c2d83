"""Qwen 3 (Yang et al. 2025, arXiv:2505.09388): Llama with a norm of every head of queries and keys."""

from forebay_server.layers.norm import RMSNorm
from forebay_server.models.llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    """The norm comes before the rotary embedding."""

    head_norm = RMSNorm


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """Experts in the layers that `ModelConfig.moe` tells."""
