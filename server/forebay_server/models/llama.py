"""The Llama architecture (Llama 2 and 3, SmolLM and their like), in the order in which data flows.

Touvron et al. 2023, arXiv:2302.13971: pre-norm blocks, rotary embedding, grouped-query attention, SwiGLU.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import nn

from forebay_kernels import add_rms_norm, rotary, silu_and_mul
from forebay_server.layers.attention import AttentionMetadata, paged_attention
from forebay_server.layers.embedding import Embedding
from forebay_server.layers.linear import Linear, PackedLinear, Slots
from forebay_server.models.model_config import ModelConfig


class LlamaForCausalLM(nn.Module):
    """Token ids of a flat batch -> hidden states -> logits. Weights are allocated, not filled: see `slots`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.num_layers))
        self.norm = _norm_weight(config)
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Compute one step.

        Args:
            token_ids: [num_tokens], int64.
            positions: [num_tokens], int64, of each token in its request.
            rotary_cos_sin: [max_model_len, head_dim], float32.
            kv_cache: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], written in place.
            metadata: how the rows attend.
            logit_rows: [num_logits], int64, the rows whose logits are wanted.

        Returns:
            [num_logits, hidden_size], for `logits`.
        """
        hidden = self.embed_tokens.look_up(token_ids)  # [num_tokens, hidden_size]
        residual = torch.zeros_like(hidden)
        for index, layer in enumerate(self.layers):
            hidden, residual = layer(hidden, residual, positions, rotary_cos_sin, kv_cache[index], metadata)
        hidden, residual = hidden[logit_rows], residual[logit_rows]  # [num_logits, hidden_size]
        hidden, _ = add_rms_norm(hidden, residual, self.norm, self.config.rms_norm_eps)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_logits, hidden_size] -> [num_logits, vocab_size], float32; apart, so that many rows can go in parts."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        logits: torch.Tensor = head(hidden)
        return logits.float()

    def slots(self) -> Slots:
        """Where each weight of the checkpoint goes, by Hugging Face's name."""
        slots = self.embed_tokens.slots("model.embed_tokens")
        slots["model.norm.weight"] = self.norm.data
        for index, layer in enumerate(cast(Iterable[LlamaLayer], self.layers)):
            slots |= layer.slots(f"model.layers.{index}")
        if self.lm_head is not None:
            slots |= self.lm_head.slots("lm_head")
        return slots


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.input_layernorm = _norm_weight(config)
        self.self_attn = LlamaAttention(config)
        self.post_attention_layernorm = _norm_weight(config)
        self.mlp = LlamaMLP(config)

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(output of the layer before, residual stream) -> (output of this layer, residual stream)."""
        hidden, residual = add_rms_norm(hidden, residual, self.input_layernorm, self.eps)
        hidden = self.self_attn(hidden, positions, rotary_cos_sin, kv_cache, metadata)
        hidden, residual = add_rms_norm(hidden, residual, self.post_attention_layernorm, self.eps)
        return self.mlp(hidden), residual

    def slots(self, prefix: str) -> Slots:
        """See `LlamaForCausalLM.slots`."""
        return {
            f"{prefix}.input_layernorm.weight": self.input_layernorm.data,
            f"{prefix}.post_attention_layernorm.weight": self.post_attention_layernorm.data,
            **self.self_attn.slots(f"{prefix}.self_attn"),
            **self.mlp.slots(f"{prefix}.mlp"),
        }


class LlamaAttention(nn.Module):
    """Queries of num_heads heads read keys and values of num_kv_heads heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.query_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        parts = {"q_proj": self.query_size, "k_proj": self.kv_size, "v_proj": self.kv_size}
        self.qkv_proj = PackedLinear(config.hidden_size, parts, config.attention_bias)
        self.o_proj = Linear(self.query_size, config.hidden_size, config.attention_bias)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        qkv = self.qkv_proj(hidden).view(hidden.shape[0], -1, self.head_dim)
        num_heads, num_kv_heads = self.query_size // self.head_dim, self.kv_size // self.head_dim
        query, key, value = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        query, key = rotary(query, key, positions, rotary_cos_sin)
        attended = paged_attention(query, key, value, kv_cache, metadata)  # [num_tokens, num_heads, head_dim]
        output: torch.Tensor = self.o_proj(attended.flatten(1))
        return output

    def slots(self, prefix: str) -> Slots:
        """See `LlamaForCausalLM.slots`."""
        return self.qkv_proj.slots(prefix) | self.o_proj.slots(f"{prefix}.o_proj")


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        parts = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        self.gate_up_proj = PackedLinear(config.hidden_size, parts, config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        output: torch.Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(hidden)))
        return output

    def slots(self, prefix: str) -> Slots:
        """See `LlamaForCausalLM.slots`."""
        return self.gate_up_proj.slots(prefix) | self.down_proj.slots(f"{prefix}.down_proj")


def _norm_weight(config: ModelConfig) -> nn.Parameter:
    return nn.Parameter(torch.empty(config.hidden_size), requires_grad=False)
