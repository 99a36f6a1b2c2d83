"""The tables of cosines and sines that the rotary embedding reads (Su et al. 2021, arXiv:2104.09864)."""

import math

import torch

from forebay_server.models.model_config import ModelConfig, RopeScaling


def rotary_cos_sin(config: ModelConfig, num_positions: int) -> torch.Tensor:
    """The table for positions 0 to num_positions - 1, of the layers that see everything.

    A scaling that depends on the length of the text (dynamic, longrope) is fixed by num_positions, the longest request
    that is served: keys in the cache keep the angles with which they were written.

    Returns:
        [num_positions, rotary_dim], float32, on the CPU: cosines in the first half of each row, sines in the second.
    """
    frequencies = _frequencies(config.rope_theta, config.rotary_dim)
    scaling = config.rope_scaling
    if scaling is not None:
        frequencies = _scaled(frequencies, scaling, config, num_positions)
    if config.rope_frequency_factors is not None:
        frequencies = frequencies / torch.tensor(config.rope_frequency_factors)
    table = _table(frequencies, num_positions)
    return table if scaling is None else table * scaling.attention_factor


def rotary_tables(config: ModelConfig, num_positions: int) -> tuple[torch.Tensor, ...]:
    """See `rotary_cos_sin`; where layers with a sliding window turn at a rate of their own, theirs comes second."""
    full = rotary_cos_sin(config, num_positions)
    if config.local_rope_theta is None:
        return (full,)
    return full, _table(_frequencies(config.local_rope_theta, config.rotary_dim), num_positions)


def _frequencies(theta: float, rotary_dim: int) -> torch.Tensor:
    """[rotary_dim / 2], float32, radians a position."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    return 1.0 / (theta**exponents)


def _table(frequencies: torch.Tensor, num_positions: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling, config: ModelConfig, num_positions: int) -> torch.Tensor:
    """[rotary_dim / 2], stretched for long contexts."""
    match scaling.kind:
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return _llama3(frequencies, scaling)
        case "yarn":
            return _yarn(frequencies, scaling, config.rope_theta)
        case "dynamic":
            return _dynamic(scaling, config, num_positions)
        case "longrope":
            is_long = num_positions > scaling.original_max_position
            return frequencies / torch.tensor(scaling.long_factors if is_long else scaling.short_factors)


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Slow frequencies are stretched, fast ones kept, those between blended (Llama 3.1 model card)."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)  # full turns within the original context
    share_kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share_kept = share_kept.clamp(0, 1)
    return share_kept * frequencies + (1 - share_kept) * frequencies / scaling.factor


def _yarn(frequencies: torch.Tensor, scaling: RopeScaling, theta: float) -> torch.Tensor:
    """As llama3, but blended linearly in the dimension (Peng et al. 2023, arXiv:2309.00071, section 3.2)."""
    rotary_dim = 2 * len(frequencies)

    def dimension_with(turns: float) -> float:
        """Where a frequency would make so many full turns within the original context."""
        return rotary_dim * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_with(scaling.beta_fast), dimension_with(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low or 0.001
    share_stretched = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return share_stretched * frequencies / scaling.factor + (1 - share_stretched) * frequencies


def _dynamic(scaling: RopeScaling, config: ModelConfig, num_positions: int) -> torch.Tensor:
    """A larger base, so that the slowest frequency turns as far at the longest position as it did in training."""
    stretch = scaling.factor * max(num_positions / scaling.original_max_position, 1.0) - (scaling.factor - 1)
    theta = config.rope_theta * stretch ** (config.rotary_dim / (config.rotary_dim - 2))
    return _frequencies(theta, config.rotary_dim)
