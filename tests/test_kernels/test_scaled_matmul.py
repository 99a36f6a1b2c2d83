"""w8a8_matmul, fp8_matmul and w8a16_matmul: one Triton kernel in three modes."""

from typing import Any

import pytest
import torch

import forebay_kernels
from forebay_kernels import reference
from forebay_kernels.dispatch import implementation
from forebay_kernels.gpu.scaled_matmul import scaled_matmul_launch
from forebay_kernels.reference.quantization import quantize_rows
from forebay_kernels.targets import TARGETS
from tests.test_kernels.comparison import DEVICE, DTYPES, random_tensor

FP8 = torch.float8_e4m3fn
# Sums are float32 in both, in another order; then one rounding, which the interpreter cuts off for bfloat16.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
# One element; odd sizes below and above a tile; channels that fill whole tiles; several steps over in_features; as many
# rows as the widest tile takes.
SHAPES = ((0, 8, 8), (1, 1, 1), (3, 33, 70), (2, 64, 9), (17, 65, 300), (130, 40, 128))
SCALES = ("tensor", "channel", "block")


def _weight(out_features: int, in_features: int, dtype: torch.dtype, scales: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight that is a slice of a wider one, with its scales."""
    weight, by_channel = quantize_rows(random_tensor(out_features, in_features + 5, dtype=torch.float32, seed=2), dtype)
    weight = _columns(weight, 3, in_features)
    if scales == "tensor":
        return weight, by_channel[:1] + 0.01
    if scales == "channel":
        return weight, by_channel * (1 + torch.arange(out_features, device=DEVICE))
    blocks = (-(-out_features // 128), -(-in_features // 128))
    return weight, random_tensor(*blocks, dtype=torch.float32, seed=3).abs()


def _columns(wide: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Slice a tensor of eight bits: float8 is sliced by its bytes."""
    return wide.view(torch.uint8)[:, first : first + count].view(wide.dtype)


def _arguments(
    name: str,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    *,
    scales: str = "channel",
    eight_bits: torch.dtype = FP8,
) -> dict[str, Any]:
    num_tokens, out_features, in_features = shape
    eight_bits = torch.int8 if name == "w8a8_matmul" else eight_bits
    weight, weight_scales = _weight(out_features, in_features, eight_bits, scales)
    # A slice of a wider tensor, as the weight.
    x = random_tensor(num_tokens, in_features + 7, dtype=torch.float32, seed=1)
    arguments = {
        "weight": weight,
        "weight_scales": weight_scales,
        "bias": random_tensor(out_features, dtype=dtype, seed=4),
        "residual": random_tensor(num_tokens, out_features, dtype=dtype, seed=5),
    }
    if name == "w8a16_matmul":
        return arguments | {"x": x.to(dtype)[:, 3:-4]}
    quantized, x_scales = quantize_rows(x, eight_bits)
    if scales == "block":
        x_scales = random_tensor(num_tokens, -(-in_features // 128), dtype=torch.float32, seed=6).abs()
    return arguments | {"x": _columns(quantized, 3, in_features), "x_scales": x_scales, "dtype": dtype}


def _assert_equal(name: str, arguments: dict[str, Any], output: torch.Tensor | None = None) -> None:
    if output is None:
        output = implementation(name, "cuda")(**arguments)
    expected = getattr(reference, name)(**arguments)
    assert output.dtype == expected.dtype
    assert output.is_contiguous()
    tolerance = TOLERANCES[output.dtype]
    # A sum may come close to 0: what matters is the size of its terms.
    largest = float(expected.float().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_w8a8_matmul_equals_its_definition(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    _assert_equal("w8a8_matmul", _arguments("w8a8_matmul", shape, dtype))


def test_w8a8_matmul_sums_exactly() -> None:
    # 127 * 127 * 1280 needs 25 bits: a float32 sum would lose the 1 that is added to it before it is taken away again.
    numbers = torch.zeros(1, 2 * 1280 + 128, dtype=torch.int8, device=DEVICE)
    numbers[:, :1280], numbers[:, 1280], numbers[:, -1280:] = 127, 1, -127
    ones = torch.ones(1, device=DEVICE)
    for run in (implementation("w8a8_matmul", "cuda"), reference.w8a8_matmul):
        assert float(run(numbers.abs(), ones, numbers, ones, torch.float32)) == 1.0


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fp8_matmul_equals_its_definition(shape: tuple[int, int, int], scales: str) -> None:
    _assert_equal("fp8_matmul", _arguments("fp8_matmul", shape, torch.float32, scales=scales))


def test_every_block_of_128_has_its_scale() -> None:
    _assert_equal("fp8_matmul", _arguments("fp8_matmul", (3, 260, 390), torch.float32, scales="block"))


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "gfx942"])
def test_gpus_with_and_without_fp8_agree_with_the_definition(target: str, scales: str) -> None:
    arguments = _arguments("fp8_matmul", (5, 33, 200), torch.float32, scales=scales)
    output = torch.empty(5, 33, device=DEVICE)
    launch = scaled_matmul_launch(
        output, **{name: value for name, value in arguments.items() if name != "dtype"}, target=TARGETS[target]
    )
    launch.run()
    _assert_equal("fp8_matmul", arguments, output)


@pytest.mark.parametrize("eight_bits", [torch.int8, FP8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2], SHAPES[3]])
def test_w8a16_matmul_equals_its_definition(
    shape: tuple[int, int, int], dtype: torch.dtype, eight_bits: torch.dtype
) -> None:
    _assert_equal("w8a16_matmul", _arguments("w8a16_matmul", shape, dtype, eight_bits=eight_bits))


@pytest.mark.parametrize("name", ["w8a8_matmul", "fp8_matmul", "w8a16_matmul"])
def test_without_bias_and_residual(name: str) -> None:
    arguments = _arguments(name, (3, 33, 70), torch.float16) | {"bias": None, "residual": None}
    _assert_equal(name, arguments)


def test_a_sum_is_rounded_once() -> None:
    # float16 has only even numbers above 2048: 2048.75 alone would lose what 2049.5 keeps.
    x, bias, residual = (torch.full((1, 1), value, dtype=torch.float16, device=DEVICE) for value in (0.75, 2048, 0.75))
    weight, scales = torch.ones(1, 1, dtype=torch.int8, device=DEVICE), torch.ones(1, device=DEVICE)
    for run in (implementation("w8a16_matmul", "cuda"), reference.w8a16_matmul):
        assert float(run(x, weight, scales, bias[0], residual)) == 2050.0


@pytest.mark.parametrize("name", ["w8a8_matmul", "fp8_matmul", "w8a16_matmul"])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(name: str) -> None:
    arguments = _arguments(name, (70, 33, 300), torch.float16)
    run = implementation(name, "cuda")
    batch = run(**arguments)
    for row in (0, 41, 69):
        rows = {
            key: value[row : row + 1].clone() if key in ("x", "x_scales", "residual") else value
            for key, value in arguments.items()
        }
        assert torch.equal(run(**rows)[0], batch[row])


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("w8a8_matmul", {"x": torch.ones(2, 8)}, "x: expected torch.int8, got torch.float32"),
        ("w8a8_matmul", {"x_scales": torch.ones(3)}, r"x_scales: expected shape \[2\], got \[3\]"),
        ("w8a8_matmul", {"weight_scales": torch.ones(1)}, r"weight_scales: expected shape \[4\], got \[1\]"),
        (
            "w8a8_matmul",
            {"weight": torch.ones(4, 9).char()},
            r"weight: expected shape \[out_features, 8\], got \[4, 9\]",
        ),
        ("w8a8_matmul", {"dtype": torch.int8}, "dtype: expected float32, float16 or bfloat16, got torch.int8"),
        ("w8a8_matmul", {"bias": torch.ones(4).half()}, "bias: expected torch.float32, got torch.float16"),
        ("w8a8_matmul", {"residual": torch.ones(1, 4)}, r"residual: expected shape \[2, 4\], got \[1, 4\]"),
        ("fp8_matmul", {"weight_scales": torch.ones(2)}, r"weight_scales: expected shape \[4\], got \[2\]"),
        ("fp8_matmul", {"weight_scales": torch.ones(1, 1)}, r"x_scales: expected shape \[2, 1\], got \[2\]"),
        ("w8a16_matmul", {"weight": torch.ones(4, 8)}, "weight: expected torch.int8 or torch.float8_e4m3fn"),
        ("w8a16_matmul", {"x": torch.ones(8)}, r"x: expected shape \[num_tokens, in_features\], got \[8\]"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, changed: dict[str, Any], message: str) -> None:
    arguments = _arguments(name, (2, 4, 8), torch.float32)
    run = getattr(forebay_kernels, name)
    run(**arguments)
    with pytest.raises(ValueError, match=message):
        run(**(arguments | changed))
