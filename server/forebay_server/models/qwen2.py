"""Qwen 2 and 2.5 (Yang et al. 2024, arXiv:2407.10671): Llama with biases on queries, keys and values only."""

from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.llama import LlamaForCausalLM
from forebay_server.models.model_config import ModelConfig


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The biases are always there; `config.json` does not mention them."""

    def build_attention(self, config: ModelConfig, index: int) -> SelfAttention:
        """Biases on q, k and v."""
        return SelfAttention(config, index, qkv_bias=True, group=self.group)


class Qwen2MoeForCausalLM(Qwen2ForCausalLM):
    """Experts in most layers, and beside them one that every token uses."""

    def build_mlp(self, config: ModelConfig, index: int) -> GatedMLP | MixtureOfExperts:
        """Experts, or a dense part in the layers that the config leaves dense."""
        if config.is_moe_layer(index):
            return MixtureOfExperts(config, group=self.group)
        return super().build_mlp(config, index)
