from typing import Any

import pytest
import torch

from forebay_kernels import decode_attention, reference
from forebay_kernels.gpu import decode_attention as gpu
from tests.test_kernels.comparison import DEVICE, random_tensor
from tests.test_kernels.paged import paged_cache

# As for prefill attention.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-4}


def _arguments(
    lengths: list[int],
    *,
    heads: tuple[int, int] = (2, 1),
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    block_size: int = 16,
) -> dict[str, Any]:
    cache = paged_cache(
        lengths, num_kv_heads=heads[1], head_dim=head_dim, dtype=cache_dtype or dtype, block_size=block_size
    )
    return {
        # A slice of a fused projection.
        "query": random_tensor(len(lengths), heads[0] + 3, head_dim, dtype=dtype, seed=1)[:, : heads[0]],
        "block_table": cache.block_table,
        "seq_lens": cache.lengths,
        "max_seq_len": max(lengths, default=0),
        "scale": head_dim**-0.5,
        **cache.arguments,
    }


def _assert_equal(arguments: dict[str, Any]) -> None:
    output = gpu.decode_attention(**arguments)
    assert output.is_contiguous()
    tolerance = TOLERANCES[output.dtype]
    expected = reference.decode_attention(**arguments)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "lengths",
    # None; one token; one block and one more; exactly one split, one more, several splits.
    [[], [1], [16, 17, 5], [256, 257, 3], [700]],
)
def test_decode_attention_equals_its_definition(lengths: list[int], dtype: torch.dtype) -> None:
    _assert_equal(_arguments(lengths, dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 1), (16, 1), (17, 1), (70, 1), (3, 3)])
def test_query_heads_read_the_key_head_they_share(heads: tuple[int, int]) -> None:
    _assert_equal(_arguments([20, 33], heads=heads, head_dim=6))


@pytest.mark.parametrize("head_dim", [1, 6, 64, 80, 256])
def test_heads_of_any_size_up_to_256(head_dim: int) -> None:
    _assert_equal(_arguments([70, 2], heads=(1, 1), head_dim=head_dim, dtype=torch.float16))


@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_blocks_of_any_size(block_size: int) -> None:
    _assert_equal(_arguments([70, 4], block_size=block_size))


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantized_cache(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    _assert_equal(_arguments([70, 300], heads=(2, 2), dtype=dtype, cache_dtype=cache_dtype))


@pytest.mark.parametrize("window", [1, 17, 256, 300, 1000])
def test_a_sliding_window(window: int) -> None:
    _assert_equal(_arguments([600, 30, 300]) | {"sliding_window": window})


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_capped_scores(cap: float) -> None:
    _assert_equal(_arguments([30, 300]) | {"soft_cap": cap, "scale": 0.5, "sliding_window": 280})


def test_a_row_of_padding_is_zeros() -> None:
    arguments = _arguments([0, 20, 0])
    output = gpu.decode_attention(**arguments)
    assert output[0].count_nonzero() == output[2].count_nonzero() == 0
    _assert_equal(arguments)


def test_a_long_sequence_has_longer_splits_instead_of_more() -> None:
    assert [gpu_splits(length) for length in (0, 1, 256, 257, 8192, 8193, 200_000)] == [1, 1, 1, 2, 32, 32, 32]
    # 33 splits of 256 tokens would not fit: 17 of 512.
    _assert_equal(_arguments([8193], heads=(1, 1), head_dim=1))


def gpu_splits(length: int) -> int:
    from forebay_kernels.gpu.decode_splits import num_splits_of

    return num_splits_of(length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 260}])
def test_a_sequence_alone_equals_the_sequence_in_a_batch_bit_for_bit(
    options: dict[str, int], dtype: torch.dtype
) -> None:
    lengths = [300, 7, 600]
    arguments = _arguments(lengths, dtype=dtype) | options
    batch = gpu.decode_attention(**arguments)
    for seq, length in enumerate(lengths):
        only = slice(seq, seq + 1)
        alone = arguments | {name: arguments[name][only].clone() for name in ("query", "block_table", "seq_lens")}
        assert torch.equal(gpu.decode_attention(**(alone | {"max_seq_len": length}))[0], batch[seq])


def test_room_for_longer_sequences_changes_nothing() -> None:
    arguments = _arguments([20, 300])
    roomy = arguments | {"max_seq_len": 9000, "block_table": arguments["block_table"].repeat(1, 30)}
    assert torch.equal(gpu.decode_attention(**roomy), gpu.decode_attention(**arguments))


def _assert_mass_equal(arguments: dict[str, Any]) -> torch.Tensor:
    """The mass of the kernel, which equals the definition's and changes no bit of the output."""
    shape = arguments["block_table"].shape
    found, expected = (torch.full(shape, 7.0, device=DEVICE) for _ in range(2))
    output = gpu.decode_attention(**arguments, attention_mass=found)
    assert torch.equal(output, gpu.decode_attention(**arguments))
    reference.decode_attention(**arguments, attention_mass=expected)
    tolerance = 1e-5 if arguments["query"].dtype == torch.float32 else 2.0**-6
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    num_heads = arguments["query"].shape[1]
    sums = torch.where(arguments["seq_lens"] > 0, float(num_heads), 0.0)
    torch.testing.assert_close(found.sum(1), sums, rtol=1e-4, atol=1e-4)
    return found


@pytest.mark.parametrize("block_size", [1, 4, 16, 64, 128])
def test_the_mass_of_each_block(block_size: int) -> None:
    # None; a part of a block; one split, one token more, several.
    _assert_mass_equal(_arguments([0, 3, 256, 257, 700], heads=(3, 1), block_size=block_size))


def test_the_mass_of_blocks_of_several_tiles() -> None:
    # Heads of 256 in float32: 16 keys a tile, 4 tiles a block.
    _assert_mass_equal(_arguments([70, 300], heads=(2, 1), head_dim=256, block_size=64))


@pytest.mark.parametrize("heads", [(9, 3), (17, 1), (70, 1)])
def test_the_mass_is_added_up_over_all_heads(heads: tuple[int, int]) -> None:
    _assert_mass_equal(_arguments([20, 300], heads=heads, head_dim=6))


@pytest.mark.parametrize("options", [{"soft_cap": 2.0}, {"scale": 4.0}])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_the_mass_under_a_cap_or_with_sharp_scores(cache_dtype: torch.dtype, options: dict[str, float]) -> None:
    """Scores of up to 60: blocks whose mass is almost none, and a maximum that grows from tile to tile."""
    _assert_mass_equal(_arguments([600, 90], heads=(2, 2), cache_dtype=cache_dtype) | options)


def test_the_mass_of_bfloat16() -> None:
    _assert_mass_equal(_arguments([300, 20], dtype=torch.bfloat16))


def test_the_mass_of_more_blocks_than_one_program_adds_up() -> None:
    mass = _assert_mass_equal(_arguments([300, 2], heads=(1, 1), head_dim=4, block_size=2))
    assert mass.shape == (2, 152)
    assert mass[0, 149] > 0


def test_the_mass_of_a_sequence_alone_equals_that_in_a_batch_bit_for_bit() -> None:
    lengths = [300, 7, 600]
    arguments = _arguments(lengths, dtype=torch.float16)
    batch = torch.empty(arguments["block_table"].shape, device=DEVICE)
    gpu.decode_attention(**arguments, attention_mass=batch)
    for seq, length in enumerate(lengths):
        only = slice(seq, seq + 1)
        alone = arguments | {name: arguments[name][only].clone() for name in ("query", "block_table", "seq_lens")}
        mass = torch.empty(alone["block_table"].shape, device=DEVICE)
        gpu.decode_attention(**(alone | {"max_seq_len": length, "attention_mass": mass}))
        assert torch.equal(mass[0], batch[seq])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": torch.ones(2, 3, 64)}, r"query: num_heads must be a multiple of 2 key heads, got \[2, 3, 64\]"),
        ({"query": torch.ones(3, 4, 64)}, r"seq_lens: expected shape \[3\], got \[2\]"),
        ({"key_cache": torch.ones(2, 16, 2, 32)}, r"key_cache: expected shape \[num_blocks, block_size, 2, 64\]"),
        ({"seq_lens": torch.ones(2)}, "seq_lens: expected torch.int32, got torch.float32"),
        ({"block_table": torch.zeros(1, 3).int()}, r"block_table: expected shape \[2, max_blocks\], got \[1, 3\]"),
        ({"max_seq_len": 49}, "max_seq_len: expected 0 to 48, what a row of block_table holds, got 49"),
        ({"scale": -1.0}, "scale: must be above 0, got -1.0"),
        ({"attention_mass": torch.ones(2, 2)}, r"attention_mass: expected shape \[2, 3\], got \[2, 2\]"),
        ({"attention_mass": torch.ones(2, 3).half()}, "attention_mass: expected torch.float32, got torch.float16"),
        (
            {"attention_mass": torch.ones(2, 3), "sliding_window": 8},
            "attention_mass: needs blocks of a power of two and no sliding window, got .* and sliding_window 8",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "query": torch.ones(2, 4, 64),
        "key_cache": torch.ones(2, 16, 2, 64),
        "value_cache": torch.ones(2, 16, 2, 64),
        "block_table": torch.zeros(2, 3, dtype=torch.int32),
        "seq_lens": torch.tensor([16, 3], dtype=torch.int32),
        "max_seq_len": 16,
        "scale": 0.125,
    }
    decode_attention(**arguments)
    with pytest.raises(ValueError, match=message):
        decode_attention(**(arguments | changed))
