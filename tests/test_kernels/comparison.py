"""How the kernel tests make tensors and how close to the definition a kernel must come."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Spacing of neighbouring numbers relative to their size, at most.
_RELATIVE_SPACING = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def random_tensor(*shape: int, dtype: torch.dtype, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(device=DEVICE, dtype=dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, num_roundings: int) -> None:
    """Fail unless actual is as close to expected as num_roundings roundings to its dtype explain.

    float16 and bfloat16: one spacing for each rounding. Two float32 values that differ in the last bit may be rounded
    to neighbours, and Triton's interpreter cuts bfloat16 off where a GPU rounds it. float32: 16 spacings for sums in
    another order and for another exp, and 1e-6 where a difference of two numbers near 1 comes close to 0.
    """
    assert actual.dtype == expected.dtype
    assert actual.is_contiguous()
    spacing = _RELATIVE_SPACING[actual.dtype]
    relative = 16 * spacing if actual.dtype == torch.float32 else num_roundings * spacing
    torch.testing.assert_close(actual, expected, rtol=relative, atol=1e-6)


def share_of_equal_bits(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Share of elements that are the same bits: near 1 only if both round at the same places."""
    return float((actual == expected).float().mean())
