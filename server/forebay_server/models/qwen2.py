"""Qwen 2 and 2.5 (Yang et al. 2024, arXiv:2407.10671): Llama with biases on queries, keys and values only."""

from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.llama import LlamaForCausalLM
from forebay_server.models.model_config import ModelConfig


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The biases are always there; `config.json` does not mention them."""

    def build_attention(self, config: ModelConfig, index: int) -> SelfAttention:
        """Biases on q, k and v."""
        return SelfAttention(config, index, qkv_bias=True, group=self.group)


class Qwen2MoeForCausalLM(Qwen2ForCausalLM):
    """Experts in the layers that `ModelConfig.moe` tells, and beside them one that every token uses."""
