"""RMS norms as layers."""

import torch
from torch import nn

from forebay_kernels import add_rms_norm, add_rms_norm_quantize, rms_norm
from forebay_server.layers.linear import Linear
from forebay_server.layers.quantized_matmul import QuantizedRows, Rows


class RMSNorm(nn.Module):
    """x / rms(x) * weight. Memory is allocated, not filled.

    Args:
        size: of the rows.
        eps: added to the mean square.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    @property
    def multiplier(self) -> torch.Tensor:
        """[size]: what rows are multiplied with."""
        return self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> [..., size]."""
        return rms_norm(x.flatten(0, -2), self.multiplier, self.eps).view(x.shape)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_tokens, size] twice -> (norm of the sum, the sum)."""
        return add_rms_norm(x, residual, self.multiplier, self.eps)

    def add_for(self, x: torch.Tensor, residual: torch.Tensor, reader: Linear | None) -> tuple[Rows, torch.Tensor]:
        """`add`, in the eight bits to which the layer that reads it would round it; None: it is read as it is."""
        dtype = None if reader is None else reader.input_dtype
        if dtype is None:
            return self.add(x, residual)
        values, scales, total = add_rms_norm_quantize(x, residual, self.multiplier, self.eps, dtype)
        return QuantizedRows(values, scales, x.dtype), total

    def slots(self, prefix: str) -> dict[str, torch.Tensor]:
        """Where the checkpoint's weight goes."""
        return {f"{prefix}.weight": self.weight.data}


class GemmaRMSNorm(RMSNorm):
    """x / rms(x) * (1 + weight): Gemma's checkpoints hold the distance from one."""

    @property
    def multiplier(self) -> torch.Tensor:
        """See `RMSNorm.multiplier`."""
        return 1 + self.weight
