"""Sizes of the models that the kernels are compiled for and measured at."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of one Llama-type model that the kernels depend on."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


MODEL_SHAPES = (
    ModelShape("smollm2-135m", 576, 1536, 9, 3, 64),
    ModelShape("llama-3-8b", 4096, 14336, 32, 8, 128),
    ModelShape("llama-3-70b", 8192, 28672, 64, 8, 128),
)
"""From each model's published config.json."""


@dataclass(frozen=True, slots=True)
class MoeShape:
    """The sizes of one mixture of experts that its kernel depends on."""

    name: str
    hidden_size: int
    intermediate_size: int
    """Of one expert."""
    num_experts: int
    experts_of_token: int


MOE_SHAPES = (
    MoeShape("mixtral-8x7b", 4096, 14336, 8, 2),
    MoeShape("qwen3-30b-a3b", 2048, 768, 128, 8),
)
"""From each model's published config.json."""
