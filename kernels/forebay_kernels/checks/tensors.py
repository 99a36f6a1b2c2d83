"""What every check is made of: ValueErrors that name the argument and what it has."""

import torch

FLOAT_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""What activations may be."""


def check_floats(name: str, tensor: torch.Tensor, shape: str, *, num_dims: int) -> None:
    """Raise ValueError unless tensor has num_dims dimensions, a float dtype and rows that can be read."""
    if tensor.dim() != num_dims:
        raise ValueError(f"{name}: expected shape {shape}, got {list(tensor.shape)}")
    if tensor.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{name}: expected float32, float16 or bfloat16, got {tensor.dtype}")
    check_rows(name, tensor)


def check_rows(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless the elements of the last dimension are adjacent."""
    # A dimension of one element may report any stride; it is adjacent to itself.
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"{name}: the last dimension must have stride 1, got shape {list(tensor.shape)} with strides "
            f"{list(tensor.stride())}; pass {name}.contiguous()"
        )


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless tensor is contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name}: must be contiguous, got shape {list(tensor.shape)} with strides {list(tensor.stride())}"
        )


def check_same_kind(name: str, tensor: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    """Raise ValueError unless tensor has the dtype and the device of like."""
    if tensor.dtype != like.dtype:
        raise ValueError(f"{name}: expected the dtype of {like_name}, {like.dtype}, got {tensor.dtype}")
    check_device(name, tensor, like_name, like)


def check_dtype(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError unless tensor has this dtype."""
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected {dtype}, got {tensor.dtype}")


def check_device(name: str, tensor: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    """Raise ValueError unless tensor lies on the device of like."""
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected the device of {like_name}, {like.device}, got {tensor.device}")


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless tensor has this shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")


def check_like(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, like: torch.Tensor) -> None:
    """Raise ValueError unless tensor has this shape and dtype, is contiguous and lies where like does."""
    check_shape(name, tensor, shape)
    check_dtype(name, tensor, dtype)
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected the device of the other arguments, {like.device}, got {tensor.device}")
    check_contiguous(name, tensor)
