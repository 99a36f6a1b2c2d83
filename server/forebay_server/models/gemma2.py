"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): norms before and after each part, soft caps, alternating windows."""

import torch

from forebay_server.layers.attention import AttentionMetadata
from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.kv_cache import Pages
from forebay_server.layers.linear import Slots
from forebay_server.layers.norm import GemmaRMSNorm, RMSNorm
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.decoder import CausalLM, DecoderLayer
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.group import RankGroup


class GemmaLayer(DecoderLayer):
    """Each part's output is normed once more before it joins the residual stream."""

    def __init__(self, config: ModelConfig, attention: SelfAttention, group: RankGroup) -> None:
        hidden_size, size, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        mlp = GatedMLP(hidden_size, size, config.activation, bias=bias, group=group)
        super().__init__(config, attention, mlp)
        eps = config.rms_norm_eps
        self.input_layernorm = GemmaRMSNorm(hidden_size, eps)
        self.post_attention_layernorm = GemmaRMSNorm(hidden_size, eps)
        self.pre_feedforward_layernorm = GemmaRMSNorm(hidden_size, eps)
        self.post_feedforward_layernorm = GemmaRMSNorm(hidden_size, eps)

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        pages: tuple[Pages, Pages],
        metadata: AttentionMetadata,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DecoderLayer.forward`."""
        hidden, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.self_attn(hidden, positions, rotary_cos_sin, pages, metadata)
        hidden = self.post_attention_layernorm(hidden)
        hidden, residual = self.pre_feedforward_layernorm.add(hidden, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden)), residual

    def slots(self, prefix: str) -> Slots:
        """See `CausalLM.slots`."""
        return {
            **super().slots(prefix),
            **self.pre_feedforward_layernorm.slots(f"{prefix}.pre_feedforward_layernorm"),
            **self.post_feedforward_layernorm.slots(f"{prefix}.post_feedforward_layernorm"),
        }


class Gemma2ForCausalLM(CausalLM):
    """Scores and logits are capped: `ModelConfig` says at what."""

    norm_class = GemmaRMSNorm
    head_norm: type[RMSNorm] | None = None

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings are multiplied with sqrt(hidden_size), rounded to their dtype as in training."""
        embedded = super().embed(token_ids)
        return embedded * torch.tensor(self.config.hidden_size**0.5, dtype=embedded.dtype, device=embedded.device)

    def build_layer(self, config: ModelConfig, index: int) -> DecoderLayer:
        """See `CausalLM.build_layer`."""
        bias = config.attention_bias
        attention = SelfAttention(
            config, index, qkv_bias=bias, output_bias=bias, head_norm=self.head_norm, group=self.group
        )
        return GemmaLayer(config, attention, self.group)
