"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): norms before and after each part, soft caps, alternating windows."""

import torch

from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.kernel_attention import BatchMetadata
from forebay_server.layers.kv_cache import Pages
from forebay_server.layers.linear import Slots
from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.layers.norm import GemmaRMSNorm
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.decoder import DecoderLayer
from forebay_server.models.llama import LlamaForCausalLM
from forebay_server.models.model_config import ModelConfig


class GemmaLayer(DecoderLayer):
    """Each part's output is normed once more before it joins the residual stream."""

    norm_class = GemmaRMSNorm

    def __init__(self, config: ModelConfig, attention: SelfAttention, mlp: GatedMLP | MixtureOfExperts) -> None:
        super().__init__(config, attention, mlp)
        self.pre_feedforward_layernorm = GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_feedforward_layernorm = GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        pages: tuple[Pages, Pages],
        metadata: BatchMetadata,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DecoderLayer.forward`."""
        rows, residual = self.input_layernorm.add_for(hidden, residual, self.self_attn.reader)
        hidden = self.self_attn(rows, positions, rotary_cos_sin, pages, metadata)
        hidden = self.post_attention_layernorm(hidden)
        rows, residual = self.pre_feedforward_layernorm.add_for(hidden, residual, self.mlp.reader)
        return self.post_feedforward_layernorm(self.mlp(rows)), residual

    def slots(self, prefix: str) -> Slots:
        """See `CausalLM.slots`."""
        return {
            **super().slots(prefix),
            **self.pre_feedforward_layernorm.slots(f"{prefix}.pre_feedforward_layernorm"),
            **self.post_feedforward_layernorm.slots(f"{prefix}.post_feedforward_layernorm"),
        }


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Scores and logits are capped: `ModelConfig` says at what."""

    norm_class = GemmaRMSNorm

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings are multiplied with sqrt(hidden_size), rounded to their dtype as in training."""
        embedded = super().embed(token_ids)
        factor = torch.tensor(self.config.hidden_size**0.5, dtype=embedded.dtype).item()
        return embedded * factor  # a number, since a tensor from the host could be in no CUDA graph

    def build_layer(self, config: ModelConfig, index: int) -> DecoderLayer:
        """See `CausalLM.build_layer`."""
        return GemmaLayer(config, self.build_attention(config, index), self.build_mlp(config, index))
