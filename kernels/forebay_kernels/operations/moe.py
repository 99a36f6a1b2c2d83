"""Mixture of experts, as callers see it."""

import torch

from forebay_kernels.checks import moe as checks
from forebay_kernels.dispatch import implementation


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
    """Run every token through its experts' gated MLPs and sum what they say, weighted.

    A token's result does not depend on its batch: its experts are added up in the order of its row of expert_ids (on a
    GPU) or of their numbers (on a CPU), and each product sums as for one token.

    Args:
        x: [num_tokens, hidden_size], float32, float16 or bfloat16; rows may lie apart.
        gate_up: [num_experts, 2 * intermediate_size, hidden_size], contiguous: of each expert gate first, then up. Of
            the dtype of x, or int8 or float8_e4m3fn with scales; or [.., hidden_size / 2] of uint8, four bits a number,
            as `forebay_kernels.int4_weights` packs them, with scales.
        down: [num_experts, hidden_size, intermediate_size], contiguous, dtype of gate_up; half as long where that is
            uint8.
        expert_ids: [num_tokens, experts of a token], int64, contiguous, each from 0 to num_experts - 1, which is not
            looked at; an expert may stand in a row twice.
        expert_weights: as expert_ids, float32: used as they are, so renormalise before if the model does.
        gate_up_scales: of weights of eight bits, float32, contiguous: [num_experts, 2 * intermediate_size] (channel),
            or [num_experts, ceil(2 * intermediate_size / 128), hidden_size / 128] (block, float8_e4m3fn only). Of
            weights of four bits, a float dtype: [num_experts, 2 * intermediate_size, num_groups], groups of 32, 64 or a
            multiple of 128.
        down_scales: as gate_up_scales, of down.
        quantizes_input: x, and what the activation yields, are rounded to the dtype of the weights before they are
            multiplied: by token, or by token and 128 elements where scales are by block (always so there). Not with
            weights of four bits.
        gate_up_zeros: of weights of four bits, like gate_up_scales, uint8; None: 8.
        down_zeros: as gate_up_zeros, of down.

    Returns:
        [num_tokens, hidden_size], dtype of x, contiguous. Each expert's products are rounded to it; the weighted sum is
        float32, rounded once.

    Raises:
        ValueError: shape, dtype, device or strides are not as said above.
    """
    arguments = (
        x, gate_up, down, expert_ids, expert_weights, gate_up_scales, down_scales, quantizes_input, gate_up_zeros,
        down_zeros,
    )  # fmt: skip
    checks.check_fused_moe(*arguments)
    output: torch.Tensor = implementation("fused_moe", x.device.type)(*arguments)
    return output
