"""The Llama architecture (Llama 2 and 3, SmolLM and their like): pre-norm layers of attention and a gated MLP.

Touvron et al. 2023, arXiv:2302.13971.
"""

from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.layers.norm import RMSNorm
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.decoder import CausalLM, DecoderLayer
from forebay_server.models.model_config import ModelConfig


class LlamaForCausalLM(CausalLM):
    """Most other architectures are this one with another attention or another feed-forward part."""

    head_norm: type[RMSNorm] | None = None
    """Of every head of queries and keys, before they turn."""

    def build_layer(self, config: ModelConfig, index: int) -> DecoderLayer:
        """See `CausalLM.build_layer`."""
        return DecoderLayer(config, self.build_attention(config, index), self.build_mlp(config, index))

    def build_attention(self, config: ModelConfig, index: int) -> SelfAttention:
        """Biases on all four projections, or on none."""
        bias = config.attention_bias
        return SelfAttention(config, index, qkv_bias=bias, output_bias=bias, head_norm=self.head_norm, group=self.group)

    def build_mlp(self, config: ModelConfig, index: int) -> GatedMLP | MixtureOfExperts:
        """Experts in the layers that the config gives some, else one dense part."""
        if config.is_moe_layer(index):
            return MixtureOfExperts(config, group=self.group)
        hidden_size, size, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        return GatedMLP(hidden_size, size, config.activation, bias=bias, group=self.group)
