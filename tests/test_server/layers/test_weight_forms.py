"""Cutting and joining weights of every form: what is left means the same numbers, or is refused."""

import pytest
import torch

from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.int4_weights import Int4Weight, pack_int4
from forebay_kernels.int8_weights import Int8Weight
from forebay_server.layers.quantized_matmul import multiply
from forebay_server.layers.weight_forms import LinearWeight, concatenate, dequantize, select_columns, select_rows

GENERATOR = torch.Generator().manual_seed(3)
ROWS, COLUMNS = 256, 256


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=GENERATOR) + 0.1


def int4(*, zeros: bool = False, mins: bool = False, permutation: torch.Tensor | None = None) -> Int4Weight:
    numbers = torch.randint(0, 16, (ROWS, COLUMNS), generator=GENERATOR, dtype=torch.uint8)
    zero_points = torch.randint(0, 16, (ROWS, 4), generator=GENERATOR, dtype=torch.uint8) if zeros else None
    return Int4Weight(
        pack_int4(numbers, 64), scales(ROWS, 4), zero_points, permutation, scales(ROWS, 4) if mins else None
    )


EIGHT_BITS = torch.randint(-127, 128, (ROWS, COLUMNS), generator=GENERATOR, dtype=torch.int8)
FLOAT8 = torch.randn(ROWS, COLUMNS, generator=GENERATOR).to(torch.float8_e4m3fn)
ORDER = torch.randperm(COLUMNS, generator=GENERATOR).int()
FORMS: dict[str, LinearWeight] = {
    "plain": torch.randn(ROWS, COLUMNS, generator=GENERATOR),
    "int8": Int8Weight(EIGHT_BITS, scales(ROWS, 1)),
    "int8-groups": Int8Weight(EIGHT_BITS, scales(ROWS, 8)),
    "int4": int4(),
    "int4-zeros": int4(zeros=True),
    "int4-mins": int4(mins=True),
    "int4-order": int4(zeros=True, permutation=ORDER),
    "fp8": Fp8Weight(FLOAT8, scales(ROWS)),
    "fp8-tensor": Fp8Weight(FLOAT8, scales(1)),
    "fp8-block": Fp8Weight(FLOAT8, scales(2, 2)),
}


@pytest.mark.parametrize("name", FORMS)
def test_rows(name: str) -> None:
    weight = FORMS[name]
    assert torch.equal(dequantize(select_rows(weight, slice(128, 256))), dequantize(weight)[128:])


@pytest.mark.parametrize("name", sorted(FORMS.keys() - {"fp8-block"}))
def test_rows_in_another_order(name: str) -> None:
    rows = torch.tensor([5, 0, 200, 5])
    assert torch.equal(dequantize(select_rows(FORMS[name], rows)), dequantize(FORMS[name])[rows])


@pytest.mark.parametrize("name", FORMS)
def test_columns(name: str) -> None:
    """Groups that are not in the order of the columns, too: a rank of a row-parallel layer must get all its scales."""
    weight = FORMS[name]
    assert torch.equal(dequantize(select_columns(weight, 128, 256)), dequantize(weight)[:, 128:])
    assert select_columns(weight, 0, COLUMNS) is weight


@pytest.mark.parametrize(
    ("name", "start", "stop"),
    [("int8-groups", 16, 256), ("int4", 0, 100), ("fp8-block", 0, 64), ("fp8-block", 64, 256)],
)
def test_columns_that_cut_through_a_group_are_refused(name: str, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="that shares one scale"):
        select_columns(FORMS[name], start, stop)


def test_rows_that_cut_through_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="cut through a block"):
        select_rows(FORMS["fp8-block"], slice(0, 100))


@pytest.mark.parametrize("name", FORMS)
def test_joined_rows(name: str) -> None:
    parts = [select_rows(FORMS[name], slice(0, 128)), select_rows(FORMS[name], slice(128, 256))]
    joined = concatenate(parts)
    assert joined is not None
    assert torch.equal(dequantize(joined), dequantize(FORMS[name]))


def test_zeros_join_with_none() -> None:
    joined = concatenate([FORMS["int4"], FORMS["int4-zeros"]])
    assert joined is not None
    assert torch.equal(dequantize(joined), torch.cat([dequantize(FORMS[name]) for name in ("int4", "int4-zeros")]))


@pytest.mark.parametrize(
    "names",
    [("plain", "int8"), ("int8", "int8-groups"), ("int4", "int4-mins"), ("int4", "int4-order"), ("fp8", "fp8-block")],
)
def test_forms_that_differ_do_not_join(names: tuple[str, str]) -> None:
    assert concatenate([FORMS[name] for name in names]) is None


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("quantizes_input", [False, True])
def test_products_on_a_cpu(name: str, quantizes_input: bool) -> None:
    x, bias = torch.randn(5, COLUMNS, generator=GENERATOR), torch.randn(ROWS, generator=GENERATOR)
    found = multiply(x, FORMS[name], bias, quantizes_input=quantizes_input)
    exact = x @ dequantize(FORMS[name]).T + bias
    is_rounded = quantizes_input and name != "plain"
    torch.testing.assert_close(found, exact, rtol=0, atol=float(exact.abs().max()) * (0.02 if is_rounded else 1e-5))
    # a token's numbers do not depend on its company
    alone = multiply(x[2:3], FORMS[name], bias, quantizes_input=quantizes_input)
    torch.testing.assert_close(alone, found[2:3], rtol=1e-5, atol=1e-4)
