"""RMS normalisation, defined in plain PyTorch."""

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
