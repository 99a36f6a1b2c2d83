"""GGUF's block formats against the gguf package, bit for bit."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from forebay_server.layers.weight_forms import dequantize
from forebay_server.weights.convert import format_of
from forebay_server.weights.gguf_blocks import decode, suitable_format

Q = GGMLQuantizationType
EXACT = (Q.Q8_0, Q.Q5_0, Q.Q4_0, Q.Q4_1, Q.Q4_K)
ROUNDED = (Q.Q5_1, Q.Q5_K, Q.Q6_K, Q.Q3_K, Q.Q2_K)
SHAPE = (6, 512)


def random_blocks(kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Bytes of every pattern, but for the float16 fields, which must be sizes that occur."""
    generator = np.random.default_rng(7)
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    raw = generator.integers(0, 256, (SHAPE[0] * SHAPE[1] // block_size, block_bytes), dtype=np.uint8)
    places = {Q.Q4_1: (0, 2), Q.Q5_1: (0, 2), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,), Q.Q3_K: (108,)}
    for at in places.get(kind, (0,) if kind != Q.Q2_K else (80, 82)):
        halves = (generator.standard_normal(len(raw)) * 0.02).astype(np.float16)
        raw[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return raw.reshape(-1)


@pytest.mark.parametrize("kind", [*EXACT, *ROUNDED], ids=lambda kind: kind.name)
def test_every_bit_pattern_means_what_the_gguf_package_says(kind: GGMLQuantizationType) -> None:
    raw = random_blocks(kind)
    expected = quants.dequantize(raw.reshape(SHAPE[0], -1), kind)
    assert torch.equal(dequantize(decode(raw, kind, SHAPE)), torch.from_numpy(expected))


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_exact_types_are_in_the_form_that_suits_them(kind: GGMLQuantizationType) -> None:
    assert format_of(decode(random_blocks(kind), kind, SHAPE)) == suitable_format(kind)


def test_types_that_no_form_holds_come_dequantized_and_suit_int8() -> None:
    for kind in ROUNDED:
        assert isinstance(decode(random_blocks(kind), kind, SHAPE), torch.Tensor)
        suitable = suitable_format(kind)
        assert suitable is not None
        assert (suitable.kind, suitable.group_size) == ("int8", 32)


def test_plain_types_have_no_form() -> None:
    assert suitable_format(Q.BF16) is None
