"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with a mixture of experts in every layer."""

from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.models.decoder import DecoderLayer
from forebay_server.models.mistral import MistralForCausalLM
from forebay_server.models.model_config import ModelConfig

_EXPERT_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}


class MixtralForCausalLM(MistralForCausalLM):
    """The checkpoint calls the experts `block_sparse_moe`, and their projections w1, w3 and w2."""

    def build_layer(self, config: ModelConfig, index: int) -> DecoderLayer:
        """See `CausalLM.build_layer`."""
        experts = MixtureOfExperts(config, _EXPERT_PARTS, self.group)
        return DecoderLayer(config, self.build_attention(config, index), experts, mlp_name="block_sparse_moe")
