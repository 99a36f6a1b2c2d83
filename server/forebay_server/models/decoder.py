"""What all supported architectures share: embedding, a residual stream through layers, final norm, output layer.

An architecture's file says what one layer is made of, in the order in which data flows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.kernel_attention import BatchMetadata
from forebay_server.layers.kv_cache import KVCache, Pages
from forebay_server.layers.linear import Slots
from forebay_server.layers.mixture_of_experts import MixtureOfExperts
from forebay_server.layers.norm import RMSNorm
from forebay_server.layers.parallel_linear import ColumnParallelLinear, VocabParallelEmbedding
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.shares import head_shares, vocabulary_share
from forebay_server.parallel.stages import WHOLE, Stage


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream (pre-norm).

    Args:
        config: of the model.
        attention: of this layer.
        mlp: the feed-forward part of this layer.
        mlp_name: how the checkpoint calls it.
    """

    norm_class: type[RMSNorm] = RMSNorm

    def __init__(
        self, config: ModelConfig, attention: SelfAttention, mlp: GatedMLP | MixtureOfExperts, mlp_name: str = "mlp"
    ) -> None:
        super().__init__()
        self.input_layernorm = self.norm_class(config.hidden_size, config.rms_norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = self.norm_class(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp
        self._mlp_name = mlp_name

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        pages: tuple[Pages, Pages],
        metadata: BatchMetadata,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(output of the layer before, residual stream) -> (output of this layer, residual stream)."""
        rows, residual = self.input_layernorm.add_for(hidden, residual, self.self_attn.reader)
        hidden = self.self_attn(rows, positions, rotary_cos_sin, pages, metadata)
        rows, residual = self.post_attention_layernorm.add_for(hidden, residual, self.mlp.reader)
        return self.mlp(rows), residual

    def slots(self, prefix: str) -> Slots:
        """See `CausalLM.slots`."""
        return {
            **self.input_layernorm.slots(f"{prefix}.input_layernorm"),
            **self.self_attn.slots(f"{prefix}.self_attn"),
            **self.post_attention_layernorm.slots(f"{prefix}.post_attention_layernorm"),
            **self.mlp.slots(f"{prefix}.{self._mlp_name}"),
        }


class CausalLM(nn.Module, ABC):
    """Token ids of a flat batch -> hidden states -> logits. Weights are allocated, not filled: see `slots`.

    Args:
        config: of the model.
        group: the ranks that share it; this one holds its share of every layer.
        stage: which of the layers are here; embedding and output layer are in the slots of the stages that use them.
    """

    norm_class: type[RMSNorm] = RMSNorm
    """Of the norm before the output layer."""

    def __init__(self, config: ModelConfig, group: RankGroup = ONE_RANK, stage: Stage = WHOLE) -> None:
        super().__init__()
        self.config = config
        self.group: RankGroup = group
        self.stage = stage
        self.layer_indices = stage.layers(config.num_layers)
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, group)
        self.layers = nn.ModuleList(self.build_layer(config, index) for index in self.layer_indices)
        self.norm = self.norm_class(config.hidden_size, config.rms_norm_eps)
        vocabulary = {"lm_head": vocabulary_share(config.vocab_size, group.rank, group.size)}
        self.lm_head = None if config.tie_word_embeddings else ColumnParallelLinear(config.hidden_size, vocabulary)

    @property
    def cache_config(self) -> ModelConfig:
        """The config with the layers and key-value heads that this rank's cache holds."""
        kv_heads = head_shares(self.config, self.group.rank, self.group.size)[1]
        layers = self.layer_indices
        return replace(
            self.config,
            num_kv_heads=kv_heads.size,
            num_layers=len(layers),
            sliding_windows=self.config.sliding_windows[layers.start : layers.stop],
        )

    @abstractmethod
    def build_layer(self, config: ModelConfig, index: int) -> DecoderLayer:
        """Layer `index` of the architecture."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens], int64 -> [num_tokens, hidden_size]."""
        return self.embed_tokens.look_up(token_ids)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rotary_tables: tuple[torch.Tensor, ...],
        kv_cache: KVCache,
        metadata: BatchMetadata,
        logit_rows: torch.Tensor,
        hidden: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute one step, or what this stage computes of it.

        Args:
            token_ids: [num_tokens], int64.
            positions: [num_tokens], int64, of each token in its request.
            rotary_tables: each [max_model_len, rotary_dim], float32; see `layers.rotary_embedding.rotary_tables`.
            kv_cache: of all layers, written in place.
            metadata: how the rows attend.
            logit_rows: [num_logits], int64, the rows whose logits are wanted.
            hidden: what the stage before returned; None on the first stage.

        Returns:
            [num_logits, hidden_size], for `logits`; on any stage but the last [num_tokens, hidden_size], for the next.
        """
        if hidden is None:
            hidden = self.embed(token_ids)  # [num_tokens, hidden_size]
        residual = torch.zeros_like(hidden)
        for position, (index, layer) in enumerate(zip(self.layer_indices, self.layers, strict=True)):
            table = rotary_tables[self.config.rotary_table(index)]
            hidden, residual = layer(hidden, residual, positions, table, kv_cache.layer(position), metadata)
        if not self.stage.is_last:
            return hidden + residual  # the next layer's norm begins with this sum, so one tensor says all
        hidden, residual = hidden[logit_rows], residual[logit_rows]  # [num_logits, hidden_size]
        return self.norm.add(hidden, residual)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_logits, hidden_size] -> [num_logits, vocab_size], float32; apart, so that many rows can go in parts.

        With several ranks all call it, and rank 0 gets the logits; the others get their own part, padded.
        """
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        logits: torch.Tensor = head(hidden).float()
        if self.group.size > 1:
            num_columns = -(-self.config.vocab_size // self.group.size)
            logits = nn.functional.pad(logits, (0, num_columns - logits.shape[1]), value=-torch.inf)
            parts = self.group.gather(logits)
            logits = torch.cat(parts, dim=1)[:, : self.config.vocab_size] if parts else logits
        cap = self.config.logit_soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def slots(self) -> Slots:
        """Where each weight of the checkpoint goes, by Hugging Face's name."""
        slots: Slots = {}
        if self.stage.is_first or (self.stage.is_last and self.lm_head is None):
            slots |= self.embed_tokens.slots("model.embed_tokens")
        for index, layer in zip(self.layer_indices, cast(Iterable[DecoderLayer], self.layers), strict=True):
            slots |= layer.slots(f"model.layers.{index}")
        if self.stage.is_last:
            slots |= self.norm.slots("model.norm")
            slots |= {} if self.lm_head is None else self.lm_head.slots("")
        return slots
