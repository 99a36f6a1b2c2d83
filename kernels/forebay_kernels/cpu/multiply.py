"""Single operations of the C++ library: a product and its quantization, for tests and for measuring."""

import ctypes

import torch

from forebay_kernels.cpu.library import load_library
from forebay_kernels.cpu.packing import PackedWeight


def multiply(x: torch.Tensor, weight: PackedWeight, *, variant: str, num_threads: int = 1) -> torch.Tensor:
    """The product of x and the transpose of a packed weight, plus its bias.

    Args:
        x: [num_tokens, in_features], any float dtype.
        weight: packed.
        variant: of the library.
        num_threads: that compute.

    Returns:
        [num_tokens, num_outputs], float32, padding included.

    Raises:
        ValueError: x does not have the weight's in_features.
        MemoryError: there is no memory for the quantized x.
    """
    x = _rows(x, weight)
    out = torch.empty(x.shape[0], weight.num_outputs)
    structure = weight.structure()
    failed = load_library(variant).forebay_multiply(
        ctypes.byref(structure), x.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], num_threads
    )
    if failed:
        raise MemoryError("no memory for the quantized activations")
    return out


def quantize(x: torch.Tensor, weight: PackedWeight, *, variant: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize x for a weight: int8 [num_tokens, num_inputs], scales and int32 sums [num_tokens, groups]."""
    x = _rows(x, weight)
    values = torch.empty(x.shape[0], weight.num_inputs, dtype=torch.int8)
    scales = torch.empty(x.shape[0], weight.num_inputs // weight.group)
    sums = torch.empty(scales.shape, dtype=torch.int32)
    structure = weight.structure()
    failed = load_library(variant).forebay_quantize(
        ctypes.byref(structure),
        x.data_ptr(),
        x.shape[0],
        x.shape[1],
        values.data_ptr(),
        scales.data_ptr(),
        sums.data_ptr(),
    )
    if failed:
        raise MemoryError("no memory for a row")
    return values, scales, sums


def _rows(x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    if x.dim() != 2 or x.shape[1] != weight.in_features:
        raise ValueError(f"x: expected [num_tokens, {weight.in_features}], got {tuple(x.shape)}")
    return x.float().contiguous()
