import pytest
import torch

from forebay_kernels import quantize_per_token, reference
from forebay_kernels.gpu import quantize_per_token as gpu
from forebay_kernels.reference.quantization import quantize_rows
from tests.test_kernels.comparison import DEVICE, DTYPES, random_tensor

EIGHT_BITS = (torch.int8, torch.float8_e4m3fn)


def _assert_same(actual: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert ours.is_contiguous()
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-6, atol=0)
    # A scale that differs in its last bit may move a number that lies between two to the other one.
    difference = (actual[0].view(torch.uint8).int() - expected[0].view(torch.uint8).int()).abs()
    assert difference.numel() == 0 or int(difference.max()) <= 1
    assert difference.count_nonzero() <= 0.01 * difference.numel()


@pytest.mark.parametrize("eight_bits", EIGHT_BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "hidden_size"), [(0, 64), (1, 1), (3, 257), (2, 576)])
def test_quantize_per_token_equals_its_definition(
    num_tokens: int, hidden_size: int, dtype: torch.dtype, eight_bits: torch.dtype
) -> None:
    x = random_tensor(num_tokens, hidden_size, dtype=dtype, seed=1, scale=3)
    _assert_same(gpu.quantize_per_token(x, eight_bits), reference.quantize_per_token(x, eight_bits))


@pytest.mark.parametrize("eight_bits", EIGHT_BITS)
@pytest.mark.parametrize("group_size", [1, 6, 96])
def test_each_group_of_a_row_has_its_scale(group_size: int, eight_bits: torch.dtype) -> None:
    x = random_tensor(3, 200, dtype=torch.float32, seed=1)[:, 4:100] * torch.arange(1, 97, device=DEVICE)
    quantized, scales = gpu.quantize_per_token(x, eight_bits, group_size)
    _assert_same((quantized, scales), reference.quantize_per_token(x, eight_bits, group_size))
    assert scales.shape == (3, 96 // group_size)
    largest = x.abs().view(3, -1, group_size).amax(-1)
    torch.testing.assert_close(scales * (127 if eight_bits == torch.int8 else 448), largest)


@pytest.mark.parametrize("eight_bits", EIGHT_BITS)
def test_the_definition_keeps_each_number_to_half_a_step(eight_bits: torch.dtype) -> None:
    x = random_tensor(4, 64, dtype=torch.float32, seed=1)
    quantized, scales = quantize_rows(x, eight_bits)
    error = (quantized.float() * scales[:, None] - x).abs()
    step = scales[:, None] * 0.5001 if eight_bits == torch.int8 else x.abs() / 16 + scales[:, None] * 2.0**-10
    assert bool((error <= step).all())


@pytest.mark.parametrize("eight_bits", EIGHT_BITS)
def test_a_row_of_zeros_and_a_row_too_small_for_a_scale_are_zeros(eight_bits: torch.dtype) -> None:
    x = torch.zeros(2, 8, device=DEVICE)
    x[1] = 1e-38
    for module in (gpu, reference):
        quantized, scales = module.quantize_per_token(x, eight_bits)
        assert quantized.view(torch.uint8).count_nonzero() == 0
        assert float(scales[0]) == 0.0


@pytest.mark.parametrize("eight_bits", EIGHT_BITS)
def test_a_row_of_tiny_numbers_keeps_them(eight_bits: torch.dtype) -> None:
    x = random_tensor(2, 8, dtype=torch.float32, seed=1, scale=1e-20)
    _assert_same(gpu.quantize_per_token(x, eight_bits), reference.quantize_per_token(x, eight_bits))


@pytest.mark.parametrize("eight_bits", EIGHT_BITS)
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(eight_bits: torch.dtype) -> None:
    x = random_tensor(4, 130, dtype=torch.bfloat16, seed=1)
    batch = gpu.quantize_per_token(x, eight_bits)
    for row in range(4):
        alone = gpu.quantize_per_token(x[row : row + 1].clone(), eight_bits)
        assert torch.equal(alone[0][0].view(torch.uint8), batch[0][row].view(torch.uint8))
        assert torch.equal(alone[1][0], batch[1][row])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(8), torch.int8), r"x: expected shape \[num_tokens, hidden_size\], got \[8\]"),
        ((torch.ones(2, 0), torch.int8), "x: hidden_size must be 1 to 32768"),
        ((torch.ones(2, 8), torch.uint8), "dtype: expected torch.int8 or torch.float8_e4m3fn, got torch.uint8"),
        ((torch.ones(2, 8), torch.int8, 3), "group_size: must divide hidden_size, 8, got 3"),
        ((torch.ones(2, 8), torch.int8, 0), "group_size: must divide hidden_size, 8, got 0"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: tuple[torch.Tensor, torch.dtype], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize_per_token(*arguments)
