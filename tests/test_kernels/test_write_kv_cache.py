import pytest
import torch

from forebay_kernels import reference, write_kv_cache
from forebay_kernels.gpu import write_kv_cache as gpu
from forebay_kernels.reference.quantization import quantize_rows
from tests.test_kernels.comparison import DEVICE, DTYPES, assert_close, random_tensor

NUM_BLOCKS, BLOCK_SIZE = 3, 4
# (num_heads, num_kv_heads, head_dim): one head; SmolLM2; multi-query; more heads than one program takes; odd sizes.
SHAPES = ((1, 1, 2), (9, 3, 64), (16, 1, 128), (33, 17, 128), (3, 3, 80))
QUANTIZED = (torch.int8, torch.float8_e4m3fn)
Cache = dict[str, torch.Tensor]


def _inputs(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    # Slices of larger tensors, each with strides of its own.
    query = random_tensor(num_tokens, num_heads + 2, head_dim + 2, dtype=dtype, seed=1)[:, 1:-1, 1:-1]
    key = random_tensor(num_tokens, num_kv_heads + 3, head_dim + 4, dtype=dtype, seed=3)[:, 3:, 2:-2]
    value = random_tensor(num_tokens, num_kv_heads + 5, head_dim + 6, dtype=dtype, seed=4)[:, 2:-3, 3:-3]
    positions = torch.arange(num_tokens, device=DEVICE) * 5 % 16
    return query, key, value, positions, random_tensor(16, head_dim, dtype=torch.float32, seed=2)


def _cache(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> Cache:
    shape = (NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, head_dim)
    cache = {name: torch.full(shape, 7.0, device=DEVICE).to(dtype) for name in ("key_cache", "value_cache")}
    if dtype in QUANTIZED:
        cache |= {name: torch.full(shape[:3], 7.0, device=DEVICE) for name in ("key_scales", "value_scales")}
    return cache


def _slots(num_tokens: int) -> torch.Tensor:
    # Scattered over the blocks; the second token is padding.
    slots = torch.arange(num_tokens, device=DEVICE) * 7 % (NUM_BLOCKS * BLOCK_SIZE)
    slots[1:2] = -1
    return slots


def _meaning(cache: Cache, name: str) -> torch.Tensor:
    """What the cache holds, as float32."""
    scales = cache.get(f"{name}_scales")
    numbers = cache[f"{name}_cache"].float()
    return numbers if scales is None else numbers * scales[..., None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_a_plain_cache_gets_what_the_definition_writes_and_nothing_else(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    inputs, slots = _inputs(num_tokens, num_heads, num_kv_heads, head_dim, dtype), _slots(num_tokens)
    cache, expected_cache = _cache(num_kv_heads, head_dim, dtype), _cache(num_kv_heads, head_dim, dtype)
    untouched = cache["key_cache"].clone()

    outputs = gpu.write_kv_cache(*inputs, slot_mapping=slots, **cache)

    expected = reference.write_kv_cache(*inputs, slot_mapping=slots, **expected_cache)
    for ours, theirs in zip(outputs, expected, strict=True):
        assert_close(ours, theirs, num_roundings=1)
    assert_close(cache["key_cache"], expected_cache["key_cache"], num_roundings=1)
    assert torch.equal(cache["value_cache"], expected_cache["value_cache"])
    is_free = torch.ones(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    is_free[slots[slots >= 0].cpu()] = False
    assert torch.equal(cache["key_cache"].flatten(0, 1)[is_free], untouched.flatten(0, 1)[is_free])
    # The key that prefill reads next is the key that was written.
    written = cache["key_cache"].flatten(0, 1)[slots[slots >= 0]]
    assert torch.equal(written, outputs[1][slots >= 0])


@pytest.mark.parametrize("cache_dtype", QUANTIZED)
def test_what_is_quantized_is_the_key_as_prefill_reads_it(cache_dtype: torch.dtype) -> None:
    """Rounded to its dtype first: a scale of the key before that would differ in its last bits."""
    inputs, slots = _inputs(5, 9, 3, 64, torch.float16), torch.arange(5, device=DEVICE)
    cache = _cache(3, 64, cache_dtype)
    _, key = gpu.write_kv_cache(*inputs, slot_mapping=slots, **cache)
    scales = quantize_rows(key, cache_dtype)[1]
    torch.testing.assert_close(cache["key_scales"].flatten(0, 1)[:5], scales, rtol=1e-6, atol=0)


@pytest.mark.parametrize("cache_dtype", QUANTIZED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (16, 1, 128), (3, 3, 80)])
def test_a_quantized_cache_gets_what_the_definition_writes(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    inputs, slots = _inputs(5, num_heads, num_kv_heads, head_dim, dtype), _slots(5)
    cache, expected_cache = _cache(num_kv_heads, head_dim, cache_dtype), _cache(num_kv_heads, head_dim, cache_dtype)
    gpu.write_kv_cache(*inputs, slot_mapping=slots, **cache)
    reference.write_kv_cache(*inputs, slot_mapping=slots, **expected_cache)
    for name in ("key", "value"):
        # Two roundings to bfloat16 may move a scale by 2**-7; values must then still be within one 8-bit step.
        torch.testing.assert_close(cache[f"{name}_scales"], expected_cache[f"{name}_scales"], rtol=2.0**-6, atol=0)
        step = expected_cache[f"{name}_scales"].max() * (1.01 if cache_dtype == torch.int8 else 32.1)
        ours, theirs = _meaning(cache, name), _meaning(expected_cache, name)
        torch.testing.assert_close(ours, theirs, rtol=2.0**-6, atol=float(step))
    same = cache["value_cache"].view(torch.uint8) == expected_cache["value_cache"].view(torch.uint8)
    assert same.float().mean() > 0.99


@pytest.mark.parametrize("cache_dtype", QUANTIZED)
def test_a_quantized_cache_holds_the_value_to_half_a_step(cache_dtype: torch.dtype) -> None:
    inputs = _inputs(3, 2, 2, 64, torch.float32)
    cache = _cache(2, 64, cache_dtype)
    gpu.write_kv_cache(*inputs, slot_mapping=torch.tensor([8, 0, 3], device=DEVICE), **cache)
    held = _meaning(cache, "value").flatten(0, 1)[[8, 0, 3]]
    magnitude = inputs[2].abs().amax(-1, keepdim=True)
    error = (held - inputs[2]).abs()
    # int8: half of 1/127 of the largest; e4m3: 3 bits of mantissa, 2**-10 of the largest at the bottom.
    bound = magnitude / 253 if cache_dtype == torch.int8 else inputs[2].abs() * 2.0**-4 + magnitude * 2.0**-17
    assert bool((error <= bound).all())


@pytest.mark.parametrize("cache_dtype", QUANTIZED)
def test_a_head_of_zeros_is_zeros_and_every_other_head_keeps_its_own_scale(cache_dtype: torch.dtype) -> None:
    query, key, value, positions, angles = _inputs(1, 2, 2, 8, torch.float32)
    value = torch.stack((torch.zeros(8), torch.full((8,), 1000.0))).unsqueeze(0).to(DEVICE)
    cache = _cache(2, 8, cache_dtype)
    gpu.write_kv_cache(query, key, value, positions, angles, slot_mapping=torch.tensor([5], device=DEVICE), **cache)
    held = _meaning(cache, "value").flatten(0, 1)[5]
    assert held[0].tolist() == [0.0] * 8
    torch.testing.assert_close(held[1], value[0, 1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, *QUANTIZED])
@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(module: object, cache_dtype: torch.dtype) -> None:
    run = module.write_kv_cache  # type: ignore[attr-defined]
    inputs = _inputs(4, 9, 3, 80, torch.bfloat16)
    slots = torch.tensor([1, 11, 6, 4], device=DEVICE)
    together, one_by_one = _cache(3, 80, cache_dtype), _cache(3, 80, cache_dtype)
    batch = run(*inputs, slot_mapping=slots, **together)
    for row in range(4):
        only = slice(row, row + 1)
        rows = [tensor[only].clone() for tensor in inputs[:4]]
        alone = run(*rows, inputs[4], slot_mapping=slots[only].clone(), **one_by_one)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, batch, strict=True))
    for name, tensor in together.items():
        assert torch.equal(tensor.view(torch.uint8), one_by_one[name].view(torch.uint8))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"value": torch.ones(4, 2, 64)}, r"value: expected the shape of key, \[4, 1, 64\], got \[4, 2, 64\]"),
        ({"value": torch.ones(4, 1, 128)[..., ::2]}, "value: the last dimension must have stride 1"),
        ({"key_cache": torch.ones(2, 16, 2, 64)}, r"key_cache: expected shape \[num_blocks, block_size, 1, 64\]"),
        ({"key_cache": torch.ones(2, 16, 1, 128)[..., ::2]}, "key_cache: must be contiguous"),
        ({"value_cache": torch.ones(3, 16, 1, 64)}, r"value_cache: expected shape \[2, 16, 1, 64\]"),
        ({"value_cache": torch.ones(2, 16, 1, 64).half()}, "value_cache: expected torch.float32, got torch.float16"),
        ({"slot_mapping": torch.arange(3)}, r"slot_mapping: expected shape \[4\], got \[3\]"),
        ({"slot_mapping": torch.arange(4).int()}, "slot_mapping: expected torch.int64, got torch.int32"),
        ({"key_scales": torch.ones(2, 16, 1)}, "key_scales, value_scales: a cache of torch.float32 has none"),
        (
            {name: torch.ones(2, 16, 1, 64).to(torch.int8) for name in ("key_cache", "value_cache")},
            "key_scales: a cache of torch.int8 needs one float32 for each slot and head",
        ),
        (
            {name: torch.ones(2, 16, 1, 64).int() for name in ("key_cache", "value_cache")},
            "key_cache: expected float32, float16, bfloat16, int8 or float8_e4m3fn, got torch.int32",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: Cache, message: str) -> None:
    arguments = {
        "query": torch.ones(4, 2, 64),
        "key": torch.ones(4, 1, 64),
        "value": torch.ones(4, 1, 64),
        "positions": torch.arange(4),
        "cos_sin_cache": torch.ones(9, 64),
        "key_cache": torch.ones(2, 16, 1, 64),
        "value_cache": torch.ones(2, 16, 1, 64),
        "slot_mapping": torch.arange(4),
    }
    write_kv_cache(**arguments)
    with pytest.raises(ValueError, match=message):
        write_kv_cache(**(arguments | changed))
