"""The table of cosines and sines that the rotary embedding reads (Su et al. 2021, arXiv:2104.09864)."""

import math

import torch

from forebay_server.models.model_config import ModelConfig, RopeScaling


def rotary_cos_sin(config: ModelConfig, num_positions: int) -> torch.Tensor:
    """The table for positions 0 to num_positions - 1.

    Returns:
        [num_positions, head_dim], float32, on the CPU: cosines in the first half of each row, sines in the second.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)  # [head_dim / 2], radians a position
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    if config.rope_frequency_factors is not None:
        frequencies = frequencies / torch.tensor(config.rope_frequency_factors)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Stretch the slow frequencies; `llama3` leaves the fast ones and blends in between (Llama 3.1 model card)."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_position * frequencies / (2 * math.pi)  # full turns within the original context
    share_kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share_kept = share_kept.clamp(0, 1)
    return share_kept * frequencies + (1 - share_kept) * frequencies / scaling.factor
