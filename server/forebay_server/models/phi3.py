"""Phi 3 and 4 (Abdin et al. 2024, arXiv:2404.14219): Llama, packed in the checkpoint, often with longrope."""

from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.decoder import CausalLM, DecoderLayer
from forebay_server.models.model_config import ModelConfig


class Phi3ForCausalLM(CausalLM):
    """The checkpoint holds q, k and v as one matrix, gate and up as another; part of each head turns (Phi 4 mini)."""

    def build_layer(self, config: ModelConfig, index: int) -> DecoderLayer:
        """See `CausalLM.build_layer`."""
        attention = SelfAttention(config, index, is_packed=True, group=self.group)
        hidden_size, size = config.hidden_size, config.intermediate_size
        mlp = GatedMLP(hidden_size, size, config.activation, is_packed=True, group=self.group)
        return DecoderLayer(config, attention, mlp)
