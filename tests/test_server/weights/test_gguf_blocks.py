"""GGUF's block formats against the gguf package, bit for bit."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from forebay_server.layers.weight_forms import dequantize
from forebay_server.weights.convert import format_of
from forebay_server.weights.gguf_blocks import decode, suitable_format
from forebay_server.weights.gguf_types import BLOCKS, GgufType

Q = GgufType
EXACT = (Q.Q8_0, Q.Q5_0, Q.Q4_0, Q.Q4_1, Q.Q4_K)
ROUNDED = (
    *(Q.Q5_1, Q.Q5_K, Q.Q6_K, Q.Q3_K, Q.Q2_K, Q.IQ4_NL, Q.IQ4_XS, Q.IQ3_S, Q.IQ3_XXS),
    *(Q.IQ2_S, Q.IQ2_XS, Q.IQ2_XXS, Q.IQ1_S, Q.IQ1_M, Q.TQ1_0, Q.TQ2_0, Q.MXFP4, Q.NVFP4),
)
PLAIN = (Q.F32, Q.F16, Q.BF16, Q.F64)
UNKNOWN = (Q.Q8_1, Q.Q8_K, Q.Q1_0, Q.I8, Q.I16, Q.I32, Q.I64)
SHAPE = (6, 512)
HALVES = {
    **dict.fromkeys((Q.Q4_1, Q.Q5_1, Q.Q4_K, Q.Q5_K), (0, 2)),
    **{Q.Q6_K: (208,), Q.Q3_K: (108,), Q.Q2_K: (80, 82), Q.TQ1_0: (52,), Q.TQ2_0: (64,)},
    **dict.fromkeys((Q.IQ1_M, Q.MXFP4, Q.NVFP4), ()),
}
"""Where the float16 fields of a block lie; 0 where nothing else is said."""


def random_blocks(kind: GgufType) -> npt.NDArray[np.uint8]:
    """Bytes of every pattern, but for the float16 fields, which must be sizes that occur."""
    generator = np.random.default_rng(7)
    block_size, block_bytes = BLOCKS[kind]
    raw = generator.integers(0, 256, (SHAPE[0] * SHAPE[1] // block_size, block_bytes), dtype=np.uint8)
    if kind == Q.MXFP4:
        raw[:, 0] = generator.integers(110, 130, len(raw), dtype=np.uint8)  # exponents
    if kind == Q.NVFP4:
        raw[:, :4] = generator.integers(0, 127, (len(raw), 4), dtype=np.uint8)  # float8 scales, none of them NaN
    if kind == Q.IQ1_M:
        raw[:, 55] &= 0x3F  # the float16 scale is spread over four half bytes: no large exponents
    for at in HALVES.get(kind, (0,)):
        halves = (generator.standard_normal(len(raw)) * 0.02).astype(np.float16)
        raw[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return raw.reshape(-1)


def test_every_type_has_the_blocks_that_the_gguf_package_says() -> None:
    assert {kind.name: kind.value for kind in GgufType} == {kind.name: kind.value for kind in GGMLQuantizationType}
    assert {kind.value: sizes for kind, sizes in BLOCKS.items()} == {
        kind.value: sizes for kind, sizes in GGML_QUANT_SIZES.items()
    }
    assert {*EXACT, *ROUNDED, *PLAIN, *UNKNOWN} == set(GgufType)


@pytest.mark.parametrize("kind", [*EXACT, *ROUNDED], ids=lambda kind: kind.name)
def test_every_bit_pattern_means_what_the_gguf_package_says(kind: GgufType) -> None:
    raw = random_blocks(kind)
    expected = quants.dequantize(raw.reshape(SHAPE[0], -1), GGMLQuantizationType(kind))
    assert np.isfinite(expected).all()
    assert np.abs(expected).max() > 0
    assert torch.equal(dequantize(decode(raw, kind, SHAPE)), torch.from_numpy(expected))


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_exact_types_are_in_the_form_that_suits_them(kind: GgufType) -> None:
    assert format_of(decode(random_blocks(kind), kind, SHAPE)) == suitable_format(kind)


def test_types_that_no_form_holds_come_dequantized_and_suit_int8() -> None:
    for kind in ROUNDED:
        assert isinstance(decode(random_blocks(kind), kind, SHAPE), torch.Tensor)
        suitable = suitable_format(kind)
        assert suitable is not None
        assert (suitable.kind, suitable.group_size) == ("int8", 32)


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16], ids=lambda kind: kind.name)
def test_plain_types_are_tensors_as_they_are(kind: GgufType) -> None:
    values = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    raw = quants.quantize(values, GGMLQuantizationType(kind)).view(np.uint8).reshape(-1)
    found = decode(raw, kind, SHAPE)
    assert isinstance(found, torch.Tensor)
    assert found.dtype.itemsize == BLOCKS[kind][1]
    assert torch.equal(
        found.float(), torch.from_numpy(quants.dequantize(raw.reshape(6, -1), GGMLQuantizationType(kind)))
    )
    assert suitable_format(kind) is None


def test_double_precision_is_a_tensor_too() -> None:
    values = np.random.default_rng(1).standard_normal(SHAPE)
    assert torch.equal(
        dequantize(decode(values.view(np.uint8).reshape(-1), Q.F64, SHAPE)), torch.from_numpy(values).float()
    )


@pytest.mark.parametrize("kind", UNKNOWN, ids=lambda kind: kind.name)
def test_types_that_no_weight_has_are_refused(kind: GgufType) -> None:
    block_size, block_bytes = BLOCKS[kind]
    raw = np.zeros(SHAPE[0] * SHAPE[1] // block_size * block_bytes, dtype=np.uint8)
    with pytest.raises(NotImplementedError):
        decode(raw, kind, SHAPE)
