"""Weights of eight bits: what quantizing loses, and what it must not."""

import pytest
import torch

from forebay_kernels.int8_weights import Int8Weight, quantize_int8


@pytest.mark.parametrize("group_size", [None, 32, 64])
def test_error_is_at_most_half_a_step(group_size: int | None) -> None:
    weight = torch.randn(5, 192, generator=torch.Generator().manual_seed(1))
    quantized = quantize_int8(weight, group_size)
    assert quantized.group_size == (group_size or 192)
    step = quantized.scales.repeat_interleave(quantized.group_size, dim=1)
    assert ((quantized.dequantize() - weight).abs() <= step * 0.5001).all()
    assert int(quantized.values.abs().max()) == 127


def test_numbers_on_the_grid_come_back_exactly() -> None:
    values = torch.arange(-127, 127, dtype=torch.int8).view(1, -1)
    values[0, 0] = -127
    weight = values.bfloat16() * 0.5
    quantized = quantize_int8(weight)
    assert torch.equal(quantized.values, values)
    assert torch.equal(quantized.dequantize(), weight.float())


def test_row_of_zeros_stays_zero() -> None:
    assert torch.equal(quantize_int8(torch.zeros(2, 64)).dequantize(), torch.zeros(2, 64))


def test_groups_have_scales_of_their_own() -> None:
    weight = Int8Weight(torch.tensor([[1, 2, 3, 4]], dtype=torch.int8), torch.tensor([[1.0, 10.0]]))
    assert weight.dequantize().tolist() == [[1.0, 2.0, 30.0, 40.0]]


def test_group_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a divisor of in_features 192, got 80"):
        quantize_int8(torch.zeros(1, 192), 80)
