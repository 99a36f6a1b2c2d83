"""Tensors without memory, of production sizes and layouts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from forebay_kernels.shapes import MODEL_SHAPES, ModelShape

if TYPE_CHECKING:
    from forebay_kernels.gpu.launch import Launch

Production = Iterator[tuple[str, str, "Launch"]]
"""(kernel, configuration, launch)."""

HEAD_SHAPES = (*MODEL_SHAPES[:2], ModelShape("gemma-2-9b", 3584, 14336, 16, 8, 256))
"""Heads of 64, 128 and 256: what distinguishes the launches of an attention kernel."""

NUM_TOKENS = 16
MAX_POSITION = 8192
BLOCK_SIZE = 16
NUM_BLOCKS = 64


def tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def heads(shape: ModelShape, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return query, key and value as slices of one fused projection, as a model may hand them over."""
    fused = tensor(NUM_TOKENS, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim, dtype=dtype)
    first_key, first_value = shape.num_heads, shape.num_heads + shape.num_kv_heads
    return fused[:, :first_key], fused[:, first_key:first_value], fused[:, first_value:]


def heads_name(shape: ModelShape) -> str:
    """Say which heads a configuration has."""
    return f"heads {shape.num_heads}+{shape.num_kv_heads} of {shape.head_dim}"


def positions(shape: ModelShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions and the cosines and sines that they choose from."""
    return tensor(NUM_TOKENS, dtype=torch.int64), tensor(MAX_POSITION, shape.head_dim, dtype=torch.float32)


def cache(shape: ModelShape, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return one layer's keys (or values), and their scales if they are quantized."""
    slots = (NUM_BLOCKS, BLOCK_SIZE, shape.num_kv_heads)
    scales = tensor(*slots, dtype=torch.float32) if dtype.itemsize == 1 else None
    return tensor(*slots, shape.head_dim, dtype=dtype), scales
