"""The launches that production makes: every kernel at the sizes of real models, for the compile gate."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from forebay_kernels.shapes import MODEL_SHAPES, ModelShape
from forebay_kernels.targets import Target

if TYPE_CHECKING:
    from forebay_kernels.gpu.launch import Launch

_NUM_TOKENS = 16
_MAX_POSITION = 8192
_BLOCK_SIZE = 16
_NUM_BLOCKS = 64
_CACHES = {"plain": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}

_HEAD_SHAPES = MODEL_SHAPES[:2]
"""Heads of 64 and of 128: what distinguishes two launches of an attention kernel."""

Production = Iterator[tuple[str, str, "Launch"]]
"""(kernel, configuration, launch), on tensors without memory."""


def production_launches(target: Target, dtype: torch.dtype = torch.bfloat16) -> Production:
    """Yield every kernel at every production size, as it would be launched on this target."""
    for shape in MODEL_SHAPES:
        yield from _elementwise(shape, dtype)
    for shape in _HEAD_SHAPES:
        yield from _cache_writes(shape, dtype)


def _tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _elementwise(shape: ModelShape, dtype: torch.dtype) -> Production:
    from forebay_kernels.gpu.rms_norm import add_rms_norm_launch, rms_norm_launch
    from forebay_kernels.gpu.rotary import rotary_launch
    from forebay_kernels.gpu.silu_and_mul import silu_and_mul_launch

    rows, weight = _tensor(_NUM_TOKENS, shape.hidden_size, dtype=dtype), _tensor(shape.hidden_size, dtype=dtype)
    hidden = f"hidden {shape.hidden_size}"
    yield "rms_norm", hidden, rms_norm_launch(rows, rows, weight, 1e-5)
    yield "add_rms_norm", hidden, add_rms_norm_launch(rows, rows, rows, rows, weight, 1e-5)

    query, key, _ = _heads(shape, dtype)
    positions, cos_sin_cache = _positions(shape)
    yield "rotary", _heads_name(shape), rotary_launch(query, key, query, key, positions, cos_sin_cache)

    activated, gate_up = (_tensor(_NUM_TOKENS, times * shape.intermediate_size, dtype=dtype) for times in (1, 2))
    yield "silu_and_mul", f"intermediate {shape.intermediate_size}", silu_and_mul_launch(activated, gate_up)


def _cache_writes(shape: ModelShape, dtype: torch.dtype) -> Production:
    from forebay_kernels.gpu.write_kv_cache import write_kv_cache_launch

    query, key, value = _heads(shape, dtype)
    positions, cos_sin_cache = _positions(shape)
    for name, cache_dtype in _CACHES.items():
        cache, scales = _cache(shape, cache_dtype or dtype)
        launch = write_kv_cache_launch(
            query, key, query, key, value, positions, cos_sin_cache, cache, cache, positions, scales, scales
        )
        yield "write_kv_cache", f"{_heads_name(shape)}, {name}", launch


def _cache(shape: ModelShape, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One layer's keys (or values), and their scales if they are quantized."""
    slots = (_NUM_BLOCKS, _BLOCK_SIZE, shape.num_kv_heads)
    return _tensor(*slots, shape.head_dim, dtype=dtype), (
        None if dtype.itemsize > 1 else _tensor(*slots, dtype=torch.float32)
    )


def _heads(shape: ModelShape, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value as slices of one fused projection, as a model may hand them over."""
    fused = _tensor(_NUM_TOKENS, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim, dtype=dtype)
    first_key, first_value = shape.num_heads, shape.num_heads + shape.num_kv_heads
    return fused[:, :first_key], fused[:, first_key:first_value], fused[:, first_value:]


def _heads_name(shape: ModelShape) -> str:
    return f"heads {shape.num_heads}+{shape.num_kv_heads} of {shape.head_dim}"


def _positions(shape: ModelShape) -> tuple[torch.Tensor, torch.Tensor]:
    return _tensor(_NUM_TOKENS, dtype=torch.int64), _tensor(_MAX_POSITION, shape.head_dim, dtype=torch.float32)
