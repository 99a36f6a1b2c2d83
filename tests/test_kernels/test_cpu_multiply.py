"""Products of the C++ library against their definition, at odd sizes, for every kind of weight and every variant."""

import pytest
import torch

from forebay_kernels.cpu.multiply import multiply, quantize
from forebay_kernels.cpu.packing import PANEL, AnyWeight, WeightKind, pack
from forebay_kernels.int4_weights import Int4Weight, pack_int4
from forebay_kernels.int8_weights import Int8Weight, quantize_int8
from forebay_kernels.reference.cpu import INPUT_GROUP, quantized_linear
from forebay_kernels.reference.quantization import quantize_rows
from tests.test_kernels.cpu_library import variants

VARIANTS = variants()
BEST = VARIANTS[0]
KINDS = ("channels", "groups of 32", "groups of 128", "q4_0", "q4_1", "gptq", "int4 by 128", "bf16")


def make_weight(kind: str, out_features: int, in_features: int) -> AnyWeight:
    generator = torch.Generator().manual_seed(out_features * 1000 + in_features)
    weight: torch.Tensor = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
    if kind == "bf16":
        return weight.bfloat16()
    if kind == "channels":
        return quantize_int8(weight)
    if kind.startswith("groups of"):
        return quantize_int8(weight, int(kind.split()[-1]))
    numbers = torch.randint(0, 16, (out_features, in_features), generator=generator, dtype=torch.uint8)
    group = 128 if kind.endswith("128") else 32
    groups = (out_features, in_features // group)
    scales = (torch.rand(groups, generator=generator) / in_features**0.5).half()
    zeros = torch.randint(0, 16, groups, generator=generator, dtype=torch.uint8) if kind == "gptq" else None
    mins = (scales * -7.3) if kind == "q4_1" else None
    return Int4Weight(pack_int4(numbers, group), scales, zeros, None, mins)


def expected(x: torch.Tensor, weight: AnyWeight, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(weight, torch.Tensor):
        product = x.bfloat16().double() @ weight.double().T
        return (product if bias is None else product + bias.double()).float()
    return quantized_linear(x, weight, bias)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "out_features", "in_features"), [(1, 1, 128), (7, 100, 384), (50, 65, 1152)])
def test_equals_the_definition(kind: str, variant: str, rows: int, out_features: int, in_features: int) -> None:
    weight = make_weight(kind, out_features, in_features)
    x = torch.randn(rows, in_features, generator=torch.Generator().manual_seed(rows)) * 3
    bias = torch.linspace(-1, 1, out_features)
    result = multiply(x, pack(weight, bias), variant=variant)[:, :out_features]
    # minimum = -zero * scale is rounded to float16, which the definition does not do
    tolerance = 5e-3 if kind == "gptq" else 2e-6
    torch.testing.assert_close(result, expected(x, weight, bias), rtol=tolerance, atol=tolerance * 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_see_its_batch(kind: str) -> None:
    packed = pack(make_weight(kind, 70, 256))
    x = torch.randn(97, 256, generator=torch.Generator().manual_seed(5))
    together = multiply(x, packed, variant=BEST, num_threads=2)
    for first, last in ((0, 1), (3, 5), (40, 97), (11, 27)):
        assert torch.equal(multiply(x[first:last], packed, variant=BEST), together[first:last])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bf16"])
def test_all_variants_give_the_same_bits(kind: str) -> None:
    packed = pack(make_weight(kind, 70, 256))
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(6))
    results = [multiply(x, packed, variant=variant) for variant in VARIANTS]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("in_features", [64, 80, 200])
def test_quantizes_as_the_definition_does(variant: str, in_features: int) -> None:
    x = torch.randn(5, in_features, generator=torch.Generator().manual_seed(7)) * torch.tensor(
        [[1e-3], [1], [9], [0], [1e4]]
    )
    packed = pack(quantize_int8(torch.ones(1, in_features)))
    values, scales, sums = quantize(x, packed, variant=variant)
    padded = torch.nn.functional.pad(x, (0, packed.num_inputs - in_features)).view(5, -1, INPUT_GROUP)
    wanted, wanted_scales = quantize_rows(padded, torch.int8)
    assert torch.equal(values.view_as(wanted), wanted)
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(sums, wanted.int().sum(-1, dtype=torch.int32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_extreme_numbers_do_not_overflow(variant: str) -> None:
    weight = Int8Weight(torch.full((64, 1024), -128, dtype=torch.int8), torch.ones(64, 1))
    x = torch.ones(2, 1024)
    x[1] = -1
    result = multiply(x, pack(weight), variant=variant)
    assert torch.allclose(result[0], torch.tensor(-128.0 * 1024))
    assert torch.allclose(result[1], torch.tensor(128.0 * 1024))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["channels", "q4_1", "bf16"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_hidden(variant: str, kind: str, poison: float) -> None:
    x = torch.ones(3, 128)
    x[1, 5] = poison
    result = multiply(x, pack(make_weight(kind, 64, 128)), variant=variant)
    assert not result[1].isfinite().any()
    assert result[[0, 2]].isfinite().all()


def test_no_rows_and_rows_with_strides() -> None:
    packed = pack(make_weight("channels", 64, 128))
    assert multiply(torch.empty(0, 128), packed, variant=BEST).shape == (0, 64)
    wide = torch.randn(6, 256, generator=torch.Generator().manual_seed(8))
    x = wide[::2, ::2]
    assert torch.equal(multiply(x, packed, variant=BEST), multiply(x.contiguous(), packed, variant=BEST))


def test_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[num_tokens, 128\], got \(2, 64\)"):
        multiply(torch.zeros(2, 64), pack(make_weight("channels", 64, 128)), variant=BEST)


def test_panels_of_two_parts_take_turns() -> None:
    weight = make_weight("channels", 200, 64)
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(9))
    plain = multiply(x, pack(weight), variant=BEST)[:, :200]
    turns = multiply(x, pack(weight, num_parts=2), variant=BEST).view(2, 4, 2, PANEL)  # [row, panel, part, output]
    assert torch.equal(turns[:, :, 0].flatten(1)[:, :100], plain[:, :100])
    assert torch.equal(turns[:, :, 1].flatten(1)[:, :100], plain[:, 100:])
    assert not turns[:, 3, :, 4:].any()


def test_inputs_in_another_order_become_eight_bits() -> None:
    weight = make_weight("q4_0", 64, 128)
    assert isinstance(weight, Int4Weight)
    permutation = torch.randperm(128, generator=torch.Generator().manual_seed(10)).int()
    shuffled = Int4Weight(weight.packed, weight.scales, None, permutation)
    packed = pack(shuffled)
    assert packed.kind == WeightKind.INT8_CHANNELS
    x = torch.randn(2, 128, generator=torch.Generator().manual_seed(11))
    result = multiply(x, packed, variant=BEST)
    torch.testing.assert_close(result, x @ shuffled.dequantize().T, rtol=0.05, atol=0.05)
