"""Qwen 3 (Yang et al. 2025, arXiv:2505.09388): Llama with a norm of every head of queries and keys."""

from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.layers.norm import RMSNorm
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.llama import LlamaForCausalLM
from forebay_server.models.model_config import ModelConfig


class Qwen3ForCausalLM(LlamaForCausalLM):
    """The norm comes before the rotary embedding."""

    def build_attention(self, config: ModelConfig, index: int) -> SelfAttention:
        """Heads are normed; biases on all four projections, or on none."""
        bias = config.attention_bias
        return SelfAttention(config, index, qkv_bias=bias, output_bias=bias, head_norm=RMSNorm, group=self.group)


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """Experts in most layers."""

    def build_mlp(self, config: ModelConfig, index: int) -> GatedMLP | MixtureOfExperts:
        """Experts, or a dense part in the layers that the config leaves dense."""
        if config.is_moe_layer(index):
            return MixtureOfExperts(config, group=self.group)
        return super().build_mlp(config, index)
