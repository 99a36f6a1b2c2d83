import pytest
import torch

from forebay_kernels import reference, rotary
from forebay_kernels.gpu import rotary as gpu
from tests.test_kernels.comparison import DEVICE, DTYPES, assert_close, random_tensor, share_of_equal_bits

MAX_POSITION = 64
# (num_heads, num_kv_heads, head_dim): one head; SmolLM2; multi-query; more heads than one program takes; odd sizes.
SHAPES = ((1, 1, 2), (9, 3, 64), (5, 1, 128), (33, 17, 128), (3, 3, 80), (2, 40, 6))


def _cos_sin_cache(head_dim: int) -> torch.Tensor:
    frequencies = 1.0 / 10_000.0 ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(MAX_POSITION, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(DEVICE)


def _positions(num_tokens: int) -> torch.Tensor:
    # Neither sorted nor without repetition: tokens of several requests. The last row of the cache is among them.
    return (MAX_POSITION - 1 - torch.arange(num_tokens) * 23 % MAX_POSITION).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_rotary_equals_its_definition(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    query = random_tensor(num_tokens, num_heads, head_dim, dtype=dtype, seed=1)
    key = random_tensor(num_tokens, num_kv_heads, head_dim, dtype=dtype, seed=2)
    query_before, key_before = query.clone(), key.clone()
    arguments = (query, key, _positions(num_tokens), _cos_sin_cache(head_dim))

    turned_query, turned_key = gpu.rotary(*arguments)

    expected_query, expected_key = reference.rotary(*arguments)
    assert_close(turned_query, expected_query, num_roundings=1)
    assert_close(turned_key, expected_key, num_roundings=1)
    assert torch.equal(query, query_before)
    assert torch.equal(key, key_before)


def test_it_rounds_where_the_definition_rounds() -> None:
    query = random_tensor(5, 9, 64, dtype=torch.float16, seed=1)
    arguments = (query, query, _positions(5), _cos_sin_cache(64))
    assert share_of_equal_bits(gpu.rotary(*arguments)[0], reference.rotary(*arguments)[0]) > 0.99


def test_position_0_changes_nothing_and_lengths_are_kept() -> None:
    query = random_tensor(2, 3, 64, dtype=torch.float32, seed=1)
    positions = torch.tensor([0, 41], device=DEVICE)
    turned, _ = gpu.rotary(query, query, positions, _cos_sin_cache(64))
    assert torch.equal(turned[0], query[0])
    assert not torch.allclose(turned[1], query[1])
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))


def test_slices_of_a_fused_projection_are_read_by_their_strides() -> None:
    fused = random_tensor(4, 9 + 3 + 3, 64, dtype=torch.float32, seed=1)
    query, key = fused[:, :9], fused[:, 9:12]
    arguments = (_positions(4), _cos_sin_cache(64))
    turned_query, turned_key = gpu.rotary(query, key, *arguments)
    expected_query, expected_key = reference.rotary(query.clone(), key.clone(), *arguments)
    assert_close(turned_query, expected_query, num_roundings=1)
    assert_close(turned_key, expected_key, num_roundings=1)


def test_heads_that_lie_further_apart_than_tokens_are_read_by_their_strides() -> None:
    query = random_tensor(9, 4, 64, dtype=torch.float32, seed=1).transpose(0, 1)  # [4, 9, 64], stride by head first
    arguments = (query, query, _positions(4), _cos_sin_cache(64))
    assert_close(gpu.rotary(*arguments)[1], reference.rotary(*arguments)[1], num_roundings=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(module: object, dtype: torch.dtype) -> None:
    query = random_tensor(6, 9, 80, dtype=dtype, seed=1)
    key = random_tensor(6, 3, 80, dtype=dtype, seed=2)
    positions, cache = _positions(6), _cos_sin_cache(80)
    run = module.rotary  # type: ignore[attr-defined]
    batch = run(query, key, positions, cache)
    for row in range(6):
        only = slice(row, row + 1)
        alone = run(query[only].clone(), key[only].clone(), positions[only].clone(), cache)
        assert torch.equal(alone[0][0], batch[0][row])
        assert torch.equal(alone[1][0], batch[1][row])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": torch.ones(4, 128)}, r"query: expected shape \[num_tokens, num_heads, head_dim\], got \[4, 128\]"),
        ({"query": torch.ones(4, 2, 63)}, r"query: head_dim must be even and at least 2, got shape \[4, 2, 63\]"),
        ({"query": torch.ones(4, 64, 2).mT}, r"query: the last dimension must have stride 1, .*\[4, 2, 64\]"),
        ({"key": torch.ones(3, 1, 64)}, r"key: expected shape \[4, num_kv_heads, 64\], got \[3, 1, 64\]"),
        ({"key": torch.ones(4, 1, 32)}, r"key: expected shape \[4, num_kv_heads, 64\], got \[4, 1, 32\]"),
        ({"key": torch.ones(4, 1, 64).half()}, "key: expected the dtype of query, torch.float32, got torch.float16"),
        ({"positions": torch.arange(3)}, r"positions: expected shape \[4\], got \[3\]"),
        ({"positions": torch.arange(4).int()}, "positions: expected torch.int64, got torch.int32"),
        ({"positions": torch.arange(8)[::2]}, r"positions: must be contiguous, got shape \[4\] with strides \[2\]"),
        ({"cos_sin_cache": torch.ones(9, 32)}, r"cos_sin_cache: expected shape \[max_position, 64\], got \[9, 32\]"),
        ({"cos_sin_cache": torch.ones(9, 64).half()}, "cos_sin_cache: expected torch.float32, got torch.float16"),
        ({"cos_sin_cache": torch.ones(64, 9).T}, r"cos_sin_cache: must be contiguous, got shape \[9, 64\]"),
        ({"cos_sin_cache": torch.ones(9, 64, device="meta")}, "cos_sin_cache: expected the device of query, cpu"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, torch.Tensor], message: str) -> None:
    arguments = {
        "query": torch.ones(4, 2, 64),
        "key": torch.ones(4, 1, 64),
        "positions": torch.arange(4),
        "cos_sin_cache": torch.ones(9, 64),
    }
    rotary(**arguments)
    with pytest.raises(ValueError, match=message):
        rotary(**(arguments | changed))
