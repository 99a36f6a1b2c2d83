"""Mixture of experts, defined in plain PyTorch. Shazeer et al. 2017, arXiv:1701.06538."""

from collections.abc import Callable

import torch

from forebay_kernels.reference.activations import silu_and_mul
from forebay_kernels.reference.matmul import SCALE_BLOCK, fp8_matmul, w4a16_matmul, w8a8_matmul, w8a16_matmul
from forebay_kernels.reference.quantization import quantize_per_token


def fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up_scales: torch.Tensor | None = None,
    down_scales: torch.Tensor | None = None,
    quantizes_input: bool = False,
    gate_up_zeros: torch.Tensor | None = None,
    down_zeros: torch.Tensor | None = None,
) -> torch.Tensor:
    """Token by token: Σ weight · round(down(silu(gate(x)) · up(x))) over the token's experts, summed in float32."""

    def mlp(rows: torch.Tensor, expert: int) -> torch.Tensor:
        inner = silu_and_mul(_product(rows, gate_up, gate_up_scales, gate_up_zeros, expert, quantizes_input))
        return _product(inner, down, down_scales, down_zeros, expert, quantizes_input)

    return sum_of_experts(x, expert_ids, expert_weights, mlp)


def sum_of_experts(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    mlp: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """Run each expert on the tokens that chose it and add up what they say, weighted, in the order of the experts.

    Args:
        x: [num_tokens, hidden_size].
        expert_ids: [num_tokens, experts of a token], int64.
        expert_weights: as expert_ids, float32.
        mlp: (rows of x, expert) -> as many rows.

    Returns:
        [num_tokens, hidden_size], dtype of x.
    """
    output = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(expert_ids.flatten().tolist())):
        tokens, choices = torch.where(expert_ids == expert)
        output.index_add_(0, tokens, mlp(x[tokens], expert).float() * expert_weights[tokens, choices].unsqueeze(1))
    return output.to(x.dtype)


def _product(
    x: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    zeros: torch.Tensor | None,
    expert: int,
    quantizes_input: bool,
) -> torch.Tensor:
    """Multiply x with one expert's weightᵀ, as the matrix products of this package define it for its form."""
    weight = weights[expert]
    if scales is None:
        return x @ weight.T
    if weight.dtype == torch.uint8:
        return w4a16_matmul(x, weight, scales[expert], None if zeros is None else zeros[expert])
    if not quantizes_input:
        return w8a16_matmul(x, weight, scales[expert])
    quantized, x_scales = quantize_per_token(x, weight.dtype, SCALE_BLOCK if scales.dim() == 3 else None)
    matmul = w8a8_matmul if weight.dtype == torch.int8 else fp8_matmul
    return matmul(quantized, x_scales, weight, scales[expert], x.dtype)
