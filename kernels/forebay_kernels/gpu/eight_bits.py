"""Eight-bit numbers in Triton: rounding to int8, and float8_e4m3fn to and from its bytes on GPUs of any age.

Kernels see float8_e4m3fn as bytes (`torch.Tensor.view(torch.uint8)`): only NVIDIA's Ada and later convert it in
hardware, and a handful of integer operations do the same on all, bit for bit as PyTorch does.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.reference.quantization import LARGEST, SMALLEST_MAGNITUDE

_SMALLEST_MAGNITUDE = tl.constexpr(SMALLEST_MAGNITUDE)

PLAIN = tl.constexpr(0)
INT8 = tl.constexpr(1)
FP8 = tl.constexpr(2)


def format_of(dtype: torch.dtype) -> int:
    """Return the constant by which kernels know the format of a tensor: PLAIN for floats that need no scale."""
    return int({torch.int8: INT8, torch.float8_e4m3fn: FP8}.get(dtype, PLAIN).value)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return float8_e4m3fn as its bytes, and anything else as it is."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def largest_of(dtype: torch.dtype) -> float:
    """Return the largest magnitude that quantization to dtype yields; 0 for a dtype that is not quantized."""
    return LARGEST.get(dtype, 0.0)


@triton.jit
def inverse_scale(magnitude, largest):  # type: ignore[no-untyped-def]
    """Compute what a row with this largest magnitude is multiplied with, as `quantize_rows` defines."""
    is_zero = magnitude <= _SMALLEST_MAGNITUDE
    return tl.where(is_zero, 0.0, largest / tl.where(is_zero, 1.0, magnitude))


@triton.jit  # type: ignore[untyped-decorator]
def quantize(scaled, FORMAT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Round float32 to the numbers of FORMAT, halves to even: int8, or the bytes of float8_e4m3fn."""
    if FORMAT == INT8:
        # Adding 1.5 * 2**23 leaves no bits below 1: the sum is rounded as every float32 sum is.
        stored = (tl.clamp(scaled, -127.0, 127.0) + 12582912.0 - 12582912.0).to(tl.int8)
    else:
        stored = _encode_fp8(scaled)
    return stored


@triton.jit
def _encode_fp8(x):  # type: ignore[no-untyped-def]
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(tl.abs(x), 448.0)
    magnitude_bits = magnitude.to(tl.int32, bitcast=True)
    # 23 bits of mantissa become 3: add half of the last bit that stays, less one if it is even. The exponent's bias
    # changes from 127 to 7.
    normal = ((magnitude_bits + 0x7FFFF + ((magnitude_bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2**-6 numbers lie 2**-9 apart.
    subnormal = (magnitude * 512.0 + 12582912.0 - 12582912.0).to(tl.int32)
    code = tl.where(magnitude < 0.015625, subnormal, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def decode_fp8(code):  # type: ignore[no-untyped-def]
    """Return the float16 that bytes of float8_e4m3fn mean: exact, and 480 where they mean NaN."""
    bits = code.to(tl.uint16)
    # The exponent's low bits: float16 has a bias of 15, this format one of 7, so the number is 2**8 too small.
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True) * 256.0


@triton.jit  # type: ignore[untyped-decorator]
def dequantize(stored, FORMAT: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return stored numbers of FORMAT as DTYPE, without their scale: exact for float16, bfloat16 and float32."""
    if FORMAT == FP8:
        numbers = decode_fp8(stored).to(DTYPE)
    elif FORMAT == INT8:
        # By way of float32, as GPUs convert integers: the interpreter cannot make bfloat16 of them at once.
        numbers = stored.to(tl.float32).to(DTYPE)
    else:
        numbers = stored.to(DTYPE)
    return numbers
