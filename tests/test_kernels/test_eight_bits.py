import pytest
import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import FP8, INT8, decode_fp8, quantize
from tests.test_kernels.comparison import DEVICE

ALL_BYTES = torch.arange(256, dtype=torch.int16).to(torch.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def _decode(numbers_ptr, bytes_ptr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    offs = tl.arange(0, size)
    tl.store(numbers_ptr + offs, decode_fp8(tl.load(bytes_ptr + offs)).to(tl.float32))


@triton.jit  # type: ignore[untyped-decorator]
def _quantize(stored_ptr, numbers_ptr, stored_format: tl.constexpr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    offs = tl.arange(0, size)
    tl.store(stored_ptr + offs, quantize(tl.load(numbers_ptr + offs), stored_format))


def test_every_byte_of_e4m3_is_read_as_pytorch_reads_it() -> None:
    expected = ALL_BYTES.view(torch.float8_e4m3fn).float()
    numbers = torch.empty(256, device=DEVICE)
    _decode[(1,)](numbers, ALL_BYTES.to(DEVICE), 256)
    is_number = ~expected.isnan()
    assert int(is_number.sum()) == 254
    assert torch.equal(numbers.cpu()[is_number], expected[is_number])


def _numbers_around_every_boundary() -> torch.Tensor:
    exact = ALL_BYTES.view(torch.float8_e4m3fn).float()
    exact = exact[~exact.isnan()].sort().values
    halfway = (exact[1:] + exact[:-1]) / 2
    return torch.cat((exact, halfway, halfway * (1 + 1e-6), halfway * (1 - 1e-6), torch.tensor([1e-30, -0.0])))


def test_every_boundary_of_e4m3_is_rounded_as_pytorch_rounds_it() -> None:
    numbers = torch.zeros(1024)
    chosen = _numbers_around_every_boundary()
    numbers[: len(chosen)] = chosen
    stored = torch.empty(1024, dtype=torch.uint8, device=DEVICE)
    _quantize[(1,)](stored, numbers.to(DEVICE), FP8.value, 1024)
    assert torch.equal(stored.cpu(), numbers.to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize(
    ("number", "rounded"),
    [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (126.5, 126), (126.51, 127), (300.0, 127), (-300.0, -127)],
)
def test_int8_rounds_halves_to_even_and_is_symmetric(number: float, rounded: int) -> None:
    stored = torch.empty(2, dtype=torch.int8, device=DEVICE)
    _quantize[(1,)](stored, torch.tensor([number, number], device=DEVICE), INT8.value, 2)
    assert stored.tolist() == [rounded, rounded]


def test_e4m3_beyond_its_range_is_its_largest_number() -> None:
    stored = torch.empty(2, dtype=torch.uint8, device=DEVICE)
    _quantize[(1,)](stored, torch.tensor([1e9, -449.0], device=DEVICE), FP8.value, 2)
    assert stored.cpu().view(torch.float8_e4m3fn).float().tolist() == [448.0, -448.0]
