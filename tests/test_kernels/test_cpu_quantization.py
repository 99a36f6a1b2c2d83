"""Quantization in the C++ library, against the definitions in torch, in every variant that this CPU can run."""

import pytest
import torch

from forebay_kernels.cpu.quantization import StoredWeight, can_quantize, quantize_int4, quantize_int8
from forebay_kernels.int4_weights import Int4Weight, pack_int4, unpack_int4
from forebay_kernels.int8_weights import Int8Weight
from forebay_kernels.int8_weights import quantize_int8 as defined_int8
from tests.test_kernels.cpu_library import variants

ROWS, COLUMNS = 7, 256
FACTORS = tuple((1 - 0.04 * step) / -8 for step in range(9))


def stored_weights() -> dict[str, StoredWeight]:
    """Every form from which the library quantizes, with odd values among them."""
    generator = torch.Generator().manual_seed(5)
    plain = torch.randn(ROWS, COLUMNS, generator=generator)
    plain[1] = 0.0
    plain[2, 17] = 1e4
    plain[3, :] = -plain[3].abs()
    numbers = torch.randint(0, 16, (ROWS, COLUMNS), generator=generator, dtype=torch.uint8)

    def int4(group: int, *, zeros: bool = False, mins: bool = False) -> Int4Weight:
        shape = (ROWS, COLUMNS // group)
        return Int4Weight(
            pack_int4(numbers, group),
            torch.rand(shape, generator=generator).half() + 0.01,
            torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8) if zeros else None,
            None,
            torch.randn(shape, generator=generator).half() if mins else None,
        )

    int8 = torch.randint(-128, 128, (ROWS, COLUMNS), generator=generator, dtype=torch.int8)
    return {
        "float32": plain,
        "bfloat16": plain.bfloat16(),
        "float16": plain.half(),
        "float32 transposed": torch.randn(COLUMNS, ROWS, generator=generator).T,
        "int8 by row": Int8Weight(int8, torch.rand(ROWS, 1, generator=generator)),
        "int8 by 32": Int8Weight(int8, torch.rand(ROWS, COLUMNS // 32, generator=generator)),
        "int4 by 32": int4(32),
        "int4 by 64 with zeros": int4(64, zeros=True),
        "int4 by 128 with mins": int4(128, mins=True),
        "int4 by 256": int4(256),
    }


def meaning(weight: StoredWeight) -> torch.Tensor:
    return weight.float() if isinstance(weight, torch.Tensor) else weight.dequantize()


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("group_size", [None, 32, 64])
@pytest.mark.parametrize("form", stored_weights())
def test_eight_bits_are_those_of_the_definition(form: str, group_size: int | None, variant: str) -> None:
    weight = stored_weights()[form]
    assert can_quantize(weight, group_size)
    found = quantize_int8(weight, group_size, variant=variant)
    expected = defined_int8(meaning(weight), group_size)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.scales, expected.scales)


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("form", stored_weights())
def test_four_bits_are_the_nearest_that_a_tried_scale_allows(form: str, group_size: int, variant: str) -> None:
    weight = stored_weights()[form]
    groups = meaning(weight).view(ROWS, -1, group_size)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True)).squeeze(2)
    scales = torch.stack([(extreme * factor).half() for factor in FACTORS])  # [factors, rows, groups]
    inverse = torch.where(scales.float().abs() > 1e-30, 1 / scales.float(), 0.0)
    numbers = (groups * inverse.unsqueeze(3)).round().clamp(-8, 7)
    errors = (numbers * scales.float().unsqueeze(3) - groups).double().square().sum(3)
    found = quantize_int4(weight, group_size, FACTORS, variant=variant)
    error = (found.dequantize().view_as(groups) - groups).double().square().sum(2)
    torch.testing.assert_close(error, errors.amin(0), rtol=1e-5, atol=1e-9)
    chosen = (scales == found.scales).float().argmax(0)
    assert bool((scales == found.scales).any(0).all())
    expected = numbers.gather(0, chosen[None, :, :, None].expand(1, *groups.shape)).squeeze(0)
    assert torch.equal(unpack_int4(found.packed, group_size).float() - 8, expected.flatten(1))


@pytest.mark.parametrize("variant", variants())
def test_what_is_not_finite_stays_so(variant: str) -> None:
    weight = torch.ones(2, 64)
    weight[0, 5] = torch.nan
    weight[1, 5] = torch.inf
    scales = quantize_int8(weight, None, variant=variant).scales
    assert bool(scales[0].isnan())
    assert bool(scales[1].isinf())


def test_what_the_library_does_not_know_is_left_to_torch() -> None:
    reordered = Int4Weight(torch.zeros(2, 32, dtype=torch.uint8), torch.ones(2, 2), None, torch.arange(64).int())
    assert not can_quantize(reordered, None)
    assert not can_quantize(torch.ones(2, 40), None)
    assert not can_quantize(torch.ones(2, 64), 48)
    assert not can_quantize(torch.ones(2, 64, dtype=torch.float64), None)
    assert not can_quantize(Int8Weight(torch.ones(2, 64, dtype=torch.int8), torch.ones(2, 8)), None)
