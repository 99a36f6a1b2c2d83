"""Activations of gated MLPs, defined in plain PyTorch."""

import torch


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Row by row: round(gate · sigmoid(gate)) · up, with gate the first half of the row and up the second."""
    gate, up = gate_up.chunk(2, dim=-1)  # [num_tokens, intermediate_size] each
    return torch.nn.functional.silu(gate) * up


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Row by row: round(gelu(gate)) · up, with gelu's tanh approximation. Hendrycks and Gimpel, arXiv:1606.08415."""
    gate, up = gate_up.chunk(2, dim=-1)  # [num_tokens, intermediate_size] each
    return torch.nn.functional.gelu(gate, approximate="tanh") * up
