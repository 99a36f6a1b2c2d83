"""Norms and activations that quantize their result: the same as the two steps one after the other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import forebay_kernels
from forebay_kernels import reference
from forebay_kernels.dispatch import implementation
from tests.test_kernels.comparison import DTYPES, random_tensor

EIGHT_BITS = (torch.int8, torch.float8_e4m3fn)
NAMES = ("rms_norm_quantize", "add_rms_norm_quantize", "silu_and_mul_quantize", "gelu_and_mul_quantize")


def _arguments(name: str, num_tokens: int, size: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Rows that are slices of longer ones."""
    wide = random_tensor(num_tokens, 4 * size + 3, dtype=dtype, seed=1, scale=2)
    wide[:, 2 * size + 2 :] = 3e3  # must not be read
    x, gate_up = wide[:, 1 : size + 1], wide[:, 2 : 2 * size + 2]
    residual = random_tensor(num_tokens, size + 5, dtype=dtype, seed=3, scale=2)[:, 2:-3]
    weight = random_tensor(size, dtype=dtype, seed=2) * 0.2 + 1
    return {
        "rms_norm_quantize": (x, weight, 1e-5),
        "add_rms_norm_quantize": (x, residual, weight, 1e-5),
    }.get(name, (gate_up,))


def _gpu(name: str) -> Callable[..., Any]:
    return implementation(name, "cuda")


@pytest.mark.parametrize("eight_bits", EIGHT_BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "size"), [(0, 64), (1, 1), (3, 257)])
@pytest.mark.parametrize("name", NAMES)
def test_it_equals_its_definition(
    name: str, num_tokens: int, size: int, dtype: torch.dtype, eight_bits: torch.dtype
) -> None:
    arguments = _arguments(name, num_tokens, size, dtype)
    outputs = _gpu(name)(*arguments, eight_bits)
    expected = getattr(reference, name)(*arguments, eight_bits)
    assert [(o.shape, o.dtype) for o in outputs] == [(e.shape, e.dtype) for e in expected]
    assert all(output.is_contiguous() for output in outputs)
    # The interpreter cuts bfloat16 off where the definition rounds: a spacing of 2**-7 for each of two roundings.
    spacing = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}[dtype]
    torch.testing.assert_close(outputs[1], expected[1], rtol=spacing, atol=0)
    numbers, expected_numbers = (pair[0].float() * pair[1][:, None] for pair in (outputs, expected))
    step = expected[1].max().item() * (1.01 if eight_bits == torch.int8 else 0.01) if num_tokens else 0.0
    # Neighbours of e4m3 lie up to an eighth of their size apart.
    relative = spacing if eight_bits == torch.int8 else 0.13
    torch.testing.assert_close(numbers, expected_numbers, rtol=relative, atol=step)
    if name == "add_rms_norm_quantize":
        torch.testing.assert_close(outputs[2], expected[2], rtol=spacing, atol=spacing)


@pytest.mark.parametrize("name", NAMES)
def test_it_rounds_where_the_definition_rounds(name: str) -> None:
    arguments = _arguments(name, 20, 300, torch.float16)
    outputs, expected = _gpu(name)(*arguments, torch.int8), getattr(reference, name)(*arguments, torch.int8)
    assert float((outputs[0] == expected[0]).float().mean()) > 0.98
    # A scale is that of the largest number as it was rounded to float16: others lie up to 2**-11 apart.
    assert int(torch.isclose(outputs[1], expected[1], rtol=1e-6, atol=0).sum()) >= 18


@pytest.mark.parametrize("name", ["silu_and_mul_quantize", "gelu_and_mul_quantize"])
def test_a_row_longer_than_a_block_has_one_scale(name: str) -> None:
    gate_up = random_tensor(1, 2 * 5000, dtype=torch.float32, seed=1)
    # The largest lies in the first block.
    gate_up[0, 10], gate_up[0, 4990], gate_up[0, 5010], gate_up[0, 9990] = 9.0, 5.0, 9.0, 5.0
    quantized, scales = _gpu(name)(gate_up, torch.int8)
    assert int(quantized[0, 10]) == 127
    assert int(quantized[0, 4990]) == pytest.approx(127 * 25 / 81, abs=1)
    assert float(scales) == pytest.approx(81 / 127, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(name: str) -> None:
    arguments = _arguments(name, 3, 130, torch.bfloat16)
    batch = _gpu(name)(*arguments, torch.int8)
    for row in range(3):
        rows = [a[row : row + 1].clone() if isinstance(a, torch.Tensor) and a.dim() == 2 else a for a in arguments]
        alone = _gpu(name)(*rows, torch.int8)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, batch, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_another_dtype_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"dtype: expected torch.int8 or torch.float8_e4m3fn, got torch.int16"):
        getattr(forebay_kernels, name)(*_arguments(name, 2, 8, torch.float32), torch.int16)
