"""Checks of the kernels' arguments: one function a kernel, ValueErrors that name the argument and what it has."""

import torch

_FLOAT_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})

MAX_HIDDEN_SIZE = 32768
"""Longest row that rms_norm takes: the GPU kernel keeps a whole row in one program's registers."""


def check_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ValueError unless `rms_norm` can take these."""
    _check_floats("x", x, "[num_tokens, hidden_size]", num_dims=2)
    hidden_size = x.shape[1]
    if not 1 <= hidden_size <= MAX_HIDDEN_SIZE:
        raise ValueError(f"x: hidden_size must be 1 to {MAX_HIDDEN_SIZE}, got shape {list(x.shape)}")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight: expected shape [{hidden_size}] for x of {list(x.shape)}, got {list(weight.shape)}")
    _check_same_kind("weight", weight, "x", x)
    _check_contiguous("weight", weight)


def check_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ValueError unless `add_rms_norm` can take these."""
    check_rms_norm(x, weight)
    if residual.shape != x.shape:
        raise ValueError(f"residual: expected the shape of x, {list(x.shape)}, got {list(residual.shape)}")
    _check_same_kind("residual", residual, "x", x)
    _check_rows("residual", residual)


def check_rotary(query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor) -> None:
    """Raise ValueError unless `rotary` can take these. Positions are not compared with the cache's length."""
    _check_floats("query", query, "[num_tokens, num_heads, head_dim]", num_dims=3)
    num_tokens, _, head_dim = query.shape
    if head_dim == 0 or head_dim % 2:
        raise ValueError(f"query: head_dim must be even and at least 2, got shape {list(query.shape)}")
    if key.dim() != 3 or key.shape[0] != num_tokens or key.shape[2] != head_dim:
        raise ValueError(f"key: expected shape [{num_tokens}, num_kv_heads, {head_dim}], got {list(key.shape)}")
    _check_same_kind("key", key, "query", query)
    _check_rows("key", key)
    if positions.shape != query.shape[:1]:
        raise ValueError(f"positions: expected shape [{num_tokens}], got {list(positions.shape)}")
    _check_dtype("positions", positions, torch.int64)
    _check_device("positions", positions, "query", query)
    _check_contiguous("positions", positions)
    if cos_sin_cache.dim() != 2 or cos_sin_cache.shape[1] != head_dim:
        raise ValueError(f"cos_sin_cache: expected shape [max_position, {head_dim}], got {list(cos_sin_cache.shape)}")
    _check_dtype("cos_sin_cache", cos_sin_cache, torch.float32)
    _check_device("cos_sin_cache", cos_sin_cache, "query", query)
    _check_contiguous("cos_sin_cache", cos_sin_cache)


def check_silu_and_mul(gate_up: torch.Tensor) -> None:
    """Raise ValueError unless `silu_and_mul` can take this."""
    _check_floats("gate_up", gate_up, "[num_tokens, 2 * intermediate_size]", num_dims=2)
    if gate_up.shape[1] == 0 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: the last dimension must be even and at least 2, got shape {list(gate_up.shape)}")


def _check_floats(name: str, tensor: torch.Tensor, shape: str, *, num_dims: int) -> None:
    if tensor.dim() != num_dims:
        raise ValueError(f"{name}: expected shape {shape}, got {list(tensor.shape)}")
    if tensor.dtype not in _FLOAT_DTYPES:
        raise ValueError(f"{name}: expected float32, float16 or bfloat16, got {tensor.dtype}")
    _check_rows(name, tensor)


def _check_rows(name: str, tensor: torch.Tensor) -> None:
    # A dimension of one element may report any stride; it is adjacent to itself.
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"{name}: the last dimension must have stride 1, got shape {list(tensor.shape)} with strides "
            f"{list(tensor.stride())}; pass {name}.contiguous()"
        )


def _check_contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name}: must be contiguous, got shape {list(tensor.shape)} with strides {list(tensor.stride())}"
        )


def _check_same_kind(name: str, tensor: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    if tensor.dtype != like.dtype:
        raise ValueError(f"{name}: expected the dtype of {like_name}, {like.dtype}, got {tensor.dtype}")
    _check_device(name, tensor, like_name, like)


def _check_dtype(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected {dtype}, got {tensor.dtype}")


def _check_device(name: str, tensor: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected the device of {like_name}, {like.device}, got {tensor.device}")
