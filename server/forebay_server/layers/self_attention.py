"""Grouped-query self-attention with rotary positions, and the variations on it that the architectures choose from."""

import torch
from torch import nn

from forebay_kernels import rotary
from forebay_server.layers.attention import paged_attention
from forebay_server.layers.kernel_attention import BatchMetadata, KernelMetadata, kernel_attention, still
from forebay_server.layers.kv_cache import Pages
from forebay_server.layers.linear import Linear, Slots
from forebay_server.layers.norm import RMSNorm
from forebay_server.layers.parallel_linear import ColumnParallelLinear, RowParallelLinear
from forebay_server.layers.quantized_matmul import Rows
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.shares import Share, head_shares


class SelfAttention(nn.Module):
    """Queries of num_heads heads read keys and values of num_kv_heads heads.

    Args:
        config: sizes, window, scale and soft cap.
        layer: which layer this is.
        qkv_bias: whether q, k and v have biases.
        output_bias: whether the output projection has one.
        head_norm: the norm of every head of queries and keys before they turn; None: there is none.
        is_packed: whether the checkpoint holds q, k and v as one matrix.
        group: the ranks that share the heads.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
        head_norm: type[RMSNorm] | None = None,
        is_packed: bool = False,
        group: RankGroup = ONE_RANK,
    ) -> None:
        super().__init__()
        self.head_dim, self.rotary_dim = config.head_dim, config.rotary_dim
        heads, kv_heads = head_shares(config, group.rank, group.size)
        self.num_heads, self.num_kv_heads = heads.size, kv_heads.size
        self.window, self.is_turning = config.sliding_window(layer), config.turns(layer)
        self.scale, self.soft_cap = config.attention_scale, config.attention_soft_cap
        query, kv = self._features(heads), self._features(kv_heads)
        parts = {"q_proj": query, "k_proj": kv, "v_proj": kv}
        packed_name = "qkv_proj" if is_packed else None
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, qkv_bias, packed_name)
        self.o_proj = RowParallelLinear(query, config.hidden_size, output_bias, group)
        self.q_norm = None if head_norm is None else head_norm(self.head_dim, config.rms_norm_eps)
        self.k_norm = None if head_norm is None else head_norm(self.head_dim, config.rms_norm_eps)

    @property
    def reader(self) -> Linear:
        """The one layer that reads the hidden states."""
        return self.qkv_proj

    def forward(
        self,
        hidden: Rows,
        positions: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        pages: tuple[Pages, Pages],
        metadata: BatchMetadata,
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        qkv = self.qkv_proj(hidden).view(positions.shape[0], -1, self.head_dim)
        query, key, value = qkv.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        turn = positions, rotary_cos_sin
        is_partial = self.rotary_dim < self.head_dim
        if self.is_turning and (is_partial or not isinstance(metadata, KernelMetadata)):
            query, key = self._turned(query, key, *turn)
        if isinstance(metadata, KernelMetadata):
            attended = kernel_attention(
                query,
                key,
                value,
                turn if self.is_turning and not is_partial else still(query),
                pages,
                metadata,
                window=self.window,
                scale=self.scale,
                soft_cap=self.soft_cap,
            )  # [num_tokens, num_heads, head_dim]
        else:
            attended = paged_attention(
                query, key, value, pages, metadata, window=self.window, scale=self.scale, soft_cap=self.soft_cap
            )
        output: torch.Tensor = self.o_proj(attended.flatten(1))
        return output

    def _features(self, heads: Share) -> Share:
        """Rows of the projection to these heads."""
        return Share(heads.full * self.head_dim, heads.start * self.head_dim, heads.stop * self.head_dim)

    def _turned(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, rotary_cos_sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate the first rotary_dim dimensions of every head."""
        if self.rotary_dim == self.head_dim:
            return rotary(query, key, positions, rotary_cos_sin)
        sizes = [self.rotary_dim, self.head_dim - self.rotary_dim]
        query_turning, query_still = torch.split(query, sizes, dim=-1)
        key_turning, key_still = torch.split(key, sizes, dim=-1)
        query_turning, key_turning = rotary(query_turning, key_turning, positions, rotary_cos_sin)
        return torch.cat((query_turning, query_still), dim=-1), torch.cat((key_turning, key_still), dim=-1)

    def slots(self, prefix: str) -> Slots:
        """Where each weight of the checkpoint goes."""
        slots = self.qkv_proj.slots(prefix) | self.o_proj.slots(f"{prefix}.o_proj")
        if self.q_norm is not None and self.k_norm is not None:
            slots |= self.q_norm.slots(f"{prefix}.q_norm") | self.k_norm.slots(f"{prefix}.k_norm")
        return slots
