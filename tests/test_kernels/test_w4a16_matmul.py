from typing import Any

import pytest
import torch

from forebay_kernels import reference, w4a16_matmul
from forebay_kernels.gpu import w4a16_matmul as gpu
from forebay_kernels.gpu.w4a16_matmul import num_splits_of
from forebay_kernels.int4_weights import pack_int4
from tests.test_kernels.comparison import DEVICE, DTYPES, random_tensor

# As for the other products: float32 sums in another order, then one rounding.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
# (num_tokens, out_features, in_features, group_size); the fourth has rows of two tiles, the last two splits that differ
# in length.
SHAPES = ((0, 8, 128, 128), (1, 1, 32, 32), (3, 33, 192, 64), (65, 70, 256, 128), (2, 9, 512, 256), (2, 5, 1408, 128))


def _arguments(
    num_tokens: int,
    out_features: int,
    in_features: int,
    group_size: int,
    *,
    dtype: torch.dtype = torch.float32,
    zeros: bool = True,
    permuted: bool = False,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randint(16, (out_features, in_features), generator=generator, dtype=torch.uint8)
    groups = (out_features, in_features // group_size)
    order = torch.randperm(in_features, generator=generator).int()
    return {
        # A slice of a wider tensor.
        "x": random_tensor(num_tokens, in_features + 8, dtype=dtype, seed=1)[:, 5:-3],
        "packed": pack_int4(numbers, group_size).to(DEVICE),
        "scales": random_tensor(*groups, dtype=dtype, seed=2).abs() + 0.1,
        "zeros": torch.randint(16, groups, generator=generator, dtype=torch.uint8).to(DEVICE) if zeros else None,
        "permutation": order.to(DEVICE) if permuted else None,
        "bias": random_tensor(out_features, dtype=dtype, seed=4),
        "residual": random_tensor(num_tokens, out_features, dtype=dtype, seed=5),
    }


def _assert_equal(arguments: dict[str, Any]) -> None:
    output, expected = gpu.w4a16_matmul(**arguments), reference.w4a16_matmul(**arguments)
    assert output.dtype == expected.dtype
    assert output.is_contiguous()
    tolerance = TOLERANCES[output.dtype]
    largest = float(expected.float().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_w4a16_matmul_equals_its_definition(shape: tuple[int, int, int, int], dtype: torch.dtype, zeros: bool) -> None:
    _assert_equal(_arguments(*shape, dtype=dtype, zeros=zeros))


@pytest.mark.parametrize("shape", SHAPES[1:4])
def test_weights_whose_order_was_changed(shape: tuple[int, int, int, int]) -> None:
    _assert_equal(_arguments(*shape, permuted=True))


@pytest.mark.parametrize("num_tokens", [2, 40])
def test_without_bias_and_residual(num_tokens: int) -> None:
    _assert_equal(_arguments(num_tokens, 9, 1280, 128) | {"bias": None, "residual": None})


def test_splits_of_more_channels_than_a_program_adds_up() -> None:
    arguments = _arguments(1, 1056, 1024, 128)
    assert num_splits_of(arguments["packed"]) == 2
    _assert_equal(arguments)


def test_few_and_many_rows_take_different_ways_to_the_same_bits() -> None:
    arguments = _arguments(40, 9, 1280, 128, dtype=torch.float16)
    assert num_splits_of(arguments["packed"]) == 2
    batch = gpu.w4a16_matmul(**arguments)
    for row in (0, 17, 39):
        rows = {
            key: value[row : row + 1].clone() if key in ("x", "residual") else value for key, value in arguments.items()
        }
        assert torch.equal(gpu.w4a16_matmul(**rows)[0], batch[row])


@pytest.mark.parametrize(
    ("out_features", "in_features", "splits"), [(4096, 4096, 2), (1024, 4096, 8), (14336, 4096, 1), (576, 576, 1)]
)
def test_small_layers_are_split(out_features: int, in_features: int, splits: int) -> None:
    assert num_splits_of(torch.empty(out_features, in_features // 2, device="meta")) == splits


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.ones(2, 64)}, r"packed: expected shape \[out_features, 64 / 2\], got \[4, 64\]"),
        ({"packed": torch.ones(4, 64).char()}, "packed: expected torch.uint8, got torch.int8"),
        ({"scales": torch.ones(4, 3)}, r"scales: expected shape \[4, num_groups\], got \[4, 3\]"),
        ({"scales": torch.ones(4, 8)}, "group_size: expected 32, 64 or a multiple of 128, got 16"),
        ({"scales": torch.ones(4, 1).half()}, "scales: expected torch.float32, got torch.float16"),
        ({"zeros": torch.ones(4, 2).byte()}, r"zeros: expected shape \[4, 1\], got \[4, 2\]"),
        ({"permutation": torch.arange(128)}, "permutation: expected torch.int32, got torch.int64"),
        ({"bias": torch.ones(3)}, r"bias: expected shape \[4\], got \[3\]"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.ones(2, 128),
        "packed": torch.ones(4, 64, dtype=torch.uint8),
        "scales": torch.ones(4, 1),
    }
    w4a16_matmul(**arguments)
    with pytest.raises(ValueError, match=message):
        w4a16_matmul(**(arguments | changed))
