import os

import pytest
import torch

from forebay_kernels import add_rms_norm, reference, rms_norm
from forebay_kernels.gpu import rms_norm as gpu
from tests.test_kernels.comparison import DEVICE, DTYPES, assert_close, random_tensor, share_of_equal_bits

# One element, odd, one below and one above a power of two, SmolLM2's, larger than one row of any small model.
HIDDEN_SIZES = (1, 7, 255, 257, 576, 12_289)
EPS = 1e-5


def _weight(hidden_size: int, dtype: torch.dtype) -> torch.Tensor:
    return random_tensor(hidden_size, dtype=dtype, seed=3) * 0.2 + 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden_size", HIDDEN_SIZES)
@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_rms_norm_equals_its_definition(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> None:
    x = random_tensor(num_tokens, hidden_size, dtype=dtype, seed=1, scale=3)
    weight = _weight(hidden_size, dtype)
    assert_close(gpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), num_roundings=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden_size", HIDDEN_SIZES)
@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_add_rms_norm_equals_its_definition(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> None:
    # Same sign: a sum near 0 would turn the interpreter's cut into a large relative difference.
    x = random_tensor(num_tokens, hidden_size, dtype=dtype, seed=1).abs()
    residual = random_tensor(num_tokens, hidden_size, dtype=dtype, seed=2, scale=5).abs()
    x_before, residual_before = x.clone(), residual.clone()
    weight = _weight(hidden_size, dtype)

    normed, new_residual = gpu.add_rms_norm(x, residual, weight, EPS)

    expected_normed, expected_residual = reference.add_rms_norm(x, residual, weight, EPS)
    assert_close(new_residual, expected_residual, num_roundings=1)
    assert_close(normed, expected_normed, num_roundings=3)
    assert torch.equal(x, x_before)
    assert torch.equal(residual, residual_before)


def test_both_round_where_the_definition_rounds() -> None:
    x = random_tensor(8, 576, dtype=torch.float16, seed=1)
    residual = random_tensor(8, 576, dtype=torch.float16, seed=2)
    weight = _weight(576, torch.float16)
    assert share_of_equal_bits(gpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS)) > 0.99
    fused = gpu.add_rms_norm(x, residual, weight, EPS)[0]
    assert share_of_equal_bits(fused, reference.add_rms_norm(x, residual, weight, EPS)[0]) > 0.99


def test_eps_keeps_a_row_of_zeros_at_zero_and_counts_beside_small_values() -> None:
    weight = torch.ones(64, device=DEVICE)
    rows = torch.zeros(2, 64, device=DEVICE)
    rows[1] = 1e-3
    normed = gpu.rms_norm(rows, weight, 1e-6)
    assert torch.equal(normed[0], rows[0])
    # 1e-3 / sqrt(1e-6 + 1e-6)
    torch.testing.assert_close(normed[1], torch.full((64,), 0.5**0.5, device=DEVICE))


def test_rows_that_lie_apart_are_read_by_their_stride() -> None:
    x = random_tensor(5, 300, dtype=torch.float32, seed=1)[:, 10:110]
    residual = random_tensor(5, 170, dtype=torch.float32, seed=2)[:, 60:160]
    weight = _weight(100, torch.float32)
    assert_close(gpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), num_roundings=2)
    normed, new_residual = gpu.add_rms_norm(x, residual, weight, EPS)
    assert_close(new_residual, x + residual, num_roundings=1)
    assert_close(normed, reference.rms_norm(x + residual, weight, EPS), num_roundings=2)


@pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 12 * 2**30,
    reason="the system grants 8 GiB of addresses only where it has as much memory",
)
def test_offsets_beyond_two_to_the_31_are_reached() -> None:
    # Row 2 starts 2**31 elements after row 0; the memory between is never touched, so never really taken. Row 0 lies
    # in the middle, so that an offset that wraps round to -2**31 reads zeros instead of ending the process.
    half = 2**31
    memory = torch.empty(2 * half + 64, dtype=torch.float16, device=DEVICE)
    x = memory.as_strided((3, 64), (half // 2, 1), half)
    x.copy_(random_tensor(3, 64, dtype=torch.float16, seed=1))
    memory[:64] = 0
    weight = _weight(64, torch.float16)
    assert_close(gpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), num_roundings=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(module: object, dtype: torch.dtype) -> None:
    x = random_tensor(6, 577, dtype=dtype, seed=1)
    residual = random_tensor(6, 577, dtype=dtype, seed=2)
    weight = _weight(577, dtype)
    run = module.add_rms_norm  # type: ignore[attr-defined]
    batch = run(x, residual, weight, EPS)
    for row in range(6):
        alone = run(x[row : row + 1].clone(), residual[row : row + 1].clone(), weight, EPS)
        assert torch.equal(alone[0][0], batch[0][row])
        assert torch.equal(alone[1][0], batch[1][row])
        assert torch.equal(module.rms_norm(alone[1], weight, EPS), alone[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.ones(8), torch.ones(8), r"x: expected shape \[num_tokens, hidden_size\], got \[8\]"),
        (torch.ones(2, 3, 8), torch.ones(8), r"x: expected shape .*, got \[2, 3, 8\]"),
        (torch.ones(2, 0), torch.ones(0), r"x: hidden_size must be 1 to 32768, got shape \[2, 0\]"),
        (torch.ones(1, 32769), torch.ones(32769), r"x: hidden_size must be 1 to 32768, got shape \[1, 32769\]"),
        (torch.ones(2, 8), torch.ones(7), r"weight: expected shape \[8\] for x of \[2, 8\], got \[7\]"),
        (torch.ones(2, 8), torch.ones(8, 1), r"weight: expected shape \[8\] for x of \[2, 8\], got \[8, 1\]"),
        (torch.ones(2, 8), torch.ones(16)[::2], r"weight: must be contiguous, got shape \[8\] with strides \[2\]"),
        (torch.ones(2, 8), torch.ones(8).half(), "weight: expected the dtype of x, torch.float32, got torch.float16"),
        (torch.ones(2, 8).int(), torch.ones(8), "x: expected float32, float16 or bfloat16, got torch.int32"),
        (
            torch.ones(8, 2).T,
            torch.ones(8),
            r"x: the last dimension must have stride 1, .* strides \[1, 2\]; pass x.con",
        ),
        (torch.ones(2, 8), torch.ones(8, device="meta"), "weight: expected the device of x, cpu, got meta"),
    ],
)
def test_arguments_that_do_not_fit_are_named(x: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rms_norm(x, weight, EPS)
    with pytest.raises(ValueError, match=message):
        add_rms_norm(x, x, weight, EPS)


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        (torch.ones(1, 8), r"residual: expected the shape of x, \[2, 8\], got \[1, 8\]"),
        (torch.ones(2, 8).half(), "residual: expected the dtype of x, torch.float32, got torch.float16"),
        (torch.ones(8, 2).T, r"residual: the last dimension must have stride 1"),
    ],
)
def test_a_residual_that_does_not_fit_is_named(residual: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_rms_norm(torch.ones(2, 8), residual, torch.ones(8), EPS)


def test_the_longest_row_is_taken() -> None:
    x = random_tensor(1, 32_768, dtype=torch.float32, seed=1)
    weight = _weight(32_768, torch.float32)
    assert_close(gpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), num_roundings=2)
