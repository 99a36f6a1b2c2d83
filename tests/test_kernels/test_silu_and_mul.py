import pytest
import torch

from forebay_kernels import gelu_and_mul, reference, silu_and_mul
from forebay_kernels.gpu import silu_and_mul as gpu
from tests.test_kernels.comparison import DEVICE, DTYPES, assert_close, random_tensor, share_of_equal_bits

# One element, odd, one below and above a power of two, one above a program's block, SmolLM2's.
INTERMEDIATE_SIZES = (1, 7, 255, 257, 1025, 1536, 2048)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("intermediate_size", INTERMEDIATE_SIZES)
@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_silu_and_mul_equals_its_definition(num_tokens: int, intermediate_size: int, dtype: torch.dtype) -> None:
    gate_up = random_tensor(num_tokens, 2 * intermediate_size, dtype=dtype, seed=1, scale=4)
    assert_close(gpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up), num_roundings=2)


def test_it_rounds_where_the_definition_rounds() -> None:
    gate_up = random_tensor(8, 2 * 576, dtype=torch.float16, seed=1)
    assert share_of_equal_bits(gpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up)) > 0.99


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # numpy's word for what is meant here
def test_a_gate_far_from_zero_is_itself_or_zero() -> None:
    gate_up = torch.tensor([[200.0, -200.0, 0.0, 3.0, 3.0, 3.0]], device=DEVICE)
    assert gpu.silu_and_mul(gate_up).tolist() == [[600.0, 0.0, 0.0]]


def test_rows_that_lie_apart_are_read_by_their_stride() -> None:
    gate_up = random_tensor(5, 300, dtype=torch.float32, seed=1)[:, 7:207]
    assert_close(gpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up), num_roundings=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(module: object, dtype: torch.dtype) -> None:
    gate_up = random_tensor(6, 2 * 577, dtype=dtype, seed=1)
    run = module.silu_and_mul  # type: ignore[attr-defined]
    batch = run(gate_up)
    for row in range(6):
        assert torch.equal(run(gate_up[row : row + 1].clone())[0], batch[row])


@pytest.mark.parametrize(
    ("gate_up", "message"),
    [
        (torch.ones(8), r"gate_up: expected shape \[num_tokens, 2 \* intermediate_size\], got \[8\]"),
        (torch.ones(2, 7), r"gate_up: the last dimension must be even and at least 2, got shape \[2, 7\]"),
        (torch.ones(2, 0), r"gate_up: the last dimension must be even and at least 2, got shape \[2, 0\]"),
        (torch.ones(8, 2).T, r"gate_up: the last dimension must have stride 1, .* strides \[1, 2\]"),
        (torch.ones(2, 8).double(), "gate_up: expected float32, float16 or bfloat16, got torch.float64"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(gate_up: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        silu_and_mul(gate_up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("intermediate_size", [7, 1025])
@pytest.mark.parametrize("num_tokens", [0, 3])
def test_gelu_and_mul_equals_its_definition(num_tokens: int, intermediate_size: int, dtype: torch.dtype) -> None:
    # Positive: far below zero gelu is a difference of two numbers near 1, of which no digits are left.
    gate_up = random_tensor(num_tokens, 2 * intermediate_size, dtype=dtype, seed=1, scale=2).abs()
    assert_close(gpu.gelu_and_mul(gate_up), reference.gelu_and_mul(gate_up), num_roundings=2)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_gelu_of_a_gate_on_both_sides_of_zero() -> None:
    gate_up = torch.tensor([[50.0, -50.0, 0.0, -1.0, 3.0, 3.0, 3.0, 1.0]], device=DEVICE)
    expected = torch.tensor([[150.0, 0.0, 0.0, -0.158808]], device=DEVICE)
    torch.testing.assert_close(gpu.gelu_and_mul(gate_up), expected, rtol=1e-5, atol=1e-6)


def test_gelu_names_an_argument_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="gate_up: the last dimension must be even"):
        gelu_and_mul(torch.ones(2, 7))
