"""The definition of every kernel in plain PyTorch: what the Triton kernels are tested against and what CPUs run.

Rounding follows the Llama model of Hugging Face transformers operation by operation, so that a bfloat16 run picks the
same tokens: where that model rounds to the input dtype between two steps, so do these functions. The one exception is
`rotary`, which keeps cos and sin in float32 where that model rounds them to the input dtype first.
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Row by row: round(x / sqrt(mean(x²) + eps)) · weight. Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4."""
    x_float32 = x.float()  # [num_tokens, hidden_size]
    mean_square = x_float32.pow(2).mean(-1, keepdim=True)  # [num_tokens, 1]
    return weight * (x_float32 * torch.rsqrt(mean_square + eps)).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rms_norm(s), s), where s = round(residual + x)."""
    new_residual = residual + x
    return rms_norm(new_residual, weight, eps), new_residual


def rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn (a, b) into (a·cos - b·sin, b·cos + a·sin), the halves of each head. Su et al. 2021, arXiv:2104.09864."""
    cos_sin = cos_sin_cache.index_select(0, positions).unsqueeze(1)  # [num_tokens, 1, head_dim]
    cos, sin = cos_sin.chunk(2, dim=-1)  # [num_tokens, 1, head_dim / 2] each
    return _rotate(query, cos, sin), _rotate(key, cos, sin)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.float().chunk(2, dim=-1)  # [num_tokens, num_heads, head_dim / 2] each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Row by row: round(gate · sigmoid(gate)) · up, with gate the first half of the row and up the second."""
    gate, up = gate_up.chunk(2, dim=-1)  # [num_tokens, intermediate_size] each
    return torch.nn.functional.silu(gate) * up
