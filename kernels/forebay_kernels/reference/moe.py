"""Mixture of experts, defined in plain PyTorch."""

import torch

from forebay_kernels.reference.activations import silu_and_mul


def fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
) -> torch.Tensor:
    """Run every token through its experts and sum what they say, weighted.

    Args:
        x: [num_tokens, hidden_size], any float dtype.
        gate_up: [num_experts, 2 * intermediate_size, hidden_size], dtype of x: of each expert gate first, then up.
        down: [num_experts, hidden_size, intermediate_size], dtype of x.
        expert_ids: [num_tokens, experts of a token], int64, different ones in a row.
        expert_weights: as expert_ids, float32.

    Returns:
        [num_tokens, hidden_size], dtype of x: sum of weight · down(silu(gate(x)) · up(x)), summed in float32.
    """
    output = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(expert_ids.flatten().tolist())):
        tokens, choices = torch.where(expert_ids == expert)
        inner = silu_and_mul(x[tokens] @ gate_up[expert].T)  # [tokens of this expert, intermediate_size]
        weights = expert_weights[tokens, choices].unsqueeze(1)
        output.index_add_(0, tokens, (inner @ down[expert].T).float() * weights)
    return output.to(x.dtype)
