"""Rotary position embedding, defined in plain PyTorch."""

import torch


def rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn (a, b) into (a·cos - b·sin, b·cos + a·sin), the halves of each head. Su et al. 2021, arXiv:2104.09864."""
    cos_sin = cos_sin_cache.index_select(0, positions).unsqueeze(1)  # [num_tokens, 1, head_dim]
    cos, sin = cos_sin.chunk(2, dim=-1)  # [num_tokens, 1, head_dim / 2] each
    return rotate_heads(query, cos, sin), rotate_heads(key, cos, sin)


def rotate_heads(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[num_tokens, num_heads, head_dim] turned by [num_tokens, 1, head_dim / 2] cosines and sines."""
    first, second = heads.float().chunk(2, dim=-1)  # [num_tokens, num_heads, head_dim / 2] each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
