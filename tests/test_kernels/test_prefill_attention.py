from typing import Any

import pytest
import torch

from forebay_kernels import prefill_attention, reference
from forebay_kernels.gpu import prefill_attention as gpu
from forebay_kernels.gpu.launch import recorded
from forebay_kernels.gpu.prefill_attention import prefill_attention_launch
from forebay_kernels.targets import TARGETS, target_named, target_of
from tests.test_kernels.comparison import DEVICE, DTYPES, random_tensor
from tests.test_kernels.paged import paged_cache

# Scores are float32 in both; the kernel rounds weights and output to the dtype, and the interpreter cuts bfloat16 off.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-4}


def _arguments(
    new: list[int],
    context: list[int],
    *,
    heads: tuple[int, int] = (2, 1),
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    block_size: int = 16,
) -> dict[str, Any]:
    num_heads, num_kv_heads = heads
    num_tokens = sum(new)
    cache = paged_cache(
        context, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=cache_dtype or dtype, block_size=block_size
    )
    bounds = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()] if new else [0], dtype=torch.int32, device=DEVICE)
    return {
        # Slices of larger tensors, each with strides of its own.
        "query": random_tensor(num_tokens, num_heads + 1, head_dim + 2, dtype=dtype, seed=1)[:, 1:, 1:-1],
        "key": random_tensor(num_tokens, num_kv_heads + 2, head_dim + 4, dtype=dtype, seed=2)[:, 1:-1, 2:-2],
        "value": random_tensor(num_tokens, num_kv_heads + 3, head_dim + 6, dtype=dtype, seed=3)[:, 2:-1, 3:-3],
        "block_table": cache.block_table,
        "cu_seqlens_q": bounds,
        "context_lens": cache.lengths,
        "max_seqlen_q": max(new, default=0),
        "scale": head_dim**-0.5,
        **cache.arguments,
    }


def _assert_equal(arguments: dict[str, Any], run: Any = gpu.prefill_attention) -> None:
    output = run(**arguments)
    assert output.is_contiguous()
    tolerance = TOLERANCES[output.dtype]
    expected = reference.prefill_attention(**arguments)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("new", "context"),
    [
        ([], []),
        ([1], [0]),
        ([5], [1]),
        ([7, 1, 33], [0, 16, 17]),
        # Several tiles of rows, of the chunk and of the prefix; a prefix of exactly one block and of none.
        ([150, 3], [16, 135]),
        ([0, 4], [8, 0]),
    ],
)
def test_prefill_attention_equals_its_definition(new: list[int], context: list[int], dtype: torch.dtype) -> None:
    _assert_equal(_arguments(new, context, dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 1), (16, 1), (2, 2)])
def test_query_heads_read_the_key_head_they_share(heads: tuple[int, int]) -> None:
    _assert_equal(_arguments([9], [20], heads=heads, head_dim=6))


@pytest.mark.parametrize("head_dim", [1, 6, 64, 80, 256])
def test_heads_of_any_size_up_to_256(head_dim: int) -> None:
    _assert_equal(_arguments([70, 2], [5, 40], heads=(1, 1), head_dim=head_dim, dtype=torch.float16))


@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_blocks_of_any_size(block_size: int) -> None:
    _assert_equal(_arguments([9, 3], [70, 4], block_size=block_size))


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantized_prefix(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    _assert_equal(_arguments([20, 2], [70, 33], dtype=dtype, cache_dtype=cache_dtype))


# With 40 and 66 the first key that is seen is the last of its tile: of the prefix, of the chunk.
@pytest.mark.parametrize("window", [1, 17, 40, 65, 66, 1000])
def test_a_sliding_window(window: int) -> None:
    _assert_equal(_arguments([150, 3], [70, 90]) | {"sliding_window": window})


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_capped_scores(cap: float) -> None:
    _assert_equal(_arguments([20, 2], [30, 0]) | {"soft_cap": cap, "scale": 0.5, "sliding_window": 9})


@pytest.mark.parametrize("target", [*TARGETS, "sm_75", "gfx1100"])
def test_the_tiles_of_every_target(target: str) -> None:
    def run(query: torch.Tensor, **arguments: Any) -> torch.Tensor:
        output = torch.empty(query.shape, device=DEVICE, dtype=query.dtype)
        options = {"sliding_window": 0, "soft_cap": 0.0, "key_scales": None, "value_scales": None}
        prefill_attention_launch(output, query, **(options | arguments), target=target_named(target)).run()
        return output

    _assert_equal(_arguments([140, 3], [40, 70], heads=(1, 1), head_dim=128, dtype=torch.float16), run)


@pytest.mark.parametrize(("head_dim", "options"), [(80, {}), (6, {"sliding_window": 66, "soft_cap": 3.0})])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_that_the_hardware_copies(dtype: torch.dtype, head_dim: int, options: dict[str, Any]) -> None:
    # The longer sequence has tiles before its last rows'. Nothing but its own keys and values may be read.
    arguments = _arguments([3, 150], [20, 70], heads=(4, 2), head_dim=head_dim, dtype=dtype) | options
    for name in ("key", "value"):
        num_tokens, num_kv_heads, _ = arguments[name].shape
        wide = torch.full((num_tokens, num_kv_heads + 3, 88), torch.nan, dtype=dtype, device=DEVICE)
        wide[:, 1:-2, :head_dim] = arguments[name]
        arguments[name] = wide[:, 1:-2, :head_dim]
    with recorded() as launches:
        _assert_equal(arguments)
    assert launches[0].arguments["USES_TMA"] == target_of(arguments["query"].device).copies_tiles


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize(
    ("shape", "first"), [((20, 1, 24), 4), ((20, 1, 20), 0), ((20, 2, 20), 0)], ids=["start", "tokens", "heads"]
)
def test_what_is_not_aligned_is_read_by_pointers(shape: tuple[int, int, int], first: int, name: str) -> None:
    # 8 bytes beyond a multiple of 16: where it starts, from token to token, from head to head.
    unaligned = random_tensor(*shape, dtype=torch.float16, seed=4)[:, :1, first : first + 16]
    aligned = _arguments([20], [0], head_dim=16, dtype=torch.float16)
    aligned |= {"key": aligned["key"].contiguous(), "value": aligned["value"].contiguous()}
    with recorded() as launches:
        _assert_equal(aligned | {name: unaligned})
        gpu.prefill_attention(**aligned)
    copies = target_of(unaligned.device).copies_tiles
    assert [launch.arguments["USES_TMA"] for launch in launches] == [False, copies]


def test_a_token_sees_itself_and_nothing_that_comes_after() -> None:
    arguments = _arguments([40], [0])
    output = gpu.prefill_attention(**arguments)
    torch.testing.assert_close(output[0], arguments["value"][0].expand(2, -1))
    arguments["key"][20:] = 50.0
    arguments["value"][20:] = 50.0
    assert torch.equal(gpu.prefill_attention(**arguments)[:20], output[:20])


def test_a_chunked_prompt_gives_what_the_whole_gives() -> None:
    whole = _arguments([80], [0])
    keys = whole["key"].contiguous().view(5, 16, 1, 16)
    values = whole["value"].contiguous().view(5, 16, 1, 16)
    table = torch.arange(5, dtype=torch.int32, device=DEVICE)[None]
    chunks = []
    for start, end in ((0, 33), (33, 34), (34, 80)):
        part = {name: whole[name][start:end] for name in ("query", "key", "value")}
        bounds = torch.tensor([0, end - start], dtype=torch.int32, device=DEVICE)
        context = torch.tensor([start], dtype=torch.int32, device=DEVICE)
        chunks.append(
            gpu.prefill_attention(
                **part, key_cache=keys, value_cache=values, block_table=table, cu_seqlens_q=bounds,
                context_lens=context, max_seqlen_q=end - start, scale=whole["scale"],
            )
        )  # fmt: skip
    torch.testing.assert_close(torch.cat(chunks), gpu.prefill_attention(**whole), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_sequence_alone_equals_the_sequence_in_a_batch_bit_for_bit(dtype: torch.dtype) -> None:
    new, context = [7, 40, 1], [33, 0, 70]
    arguments = _arguments(new, context, dtype=dtype)
    batch = gpu.prefill_attention(**arguments)
    start = 0
    for seq, (count, length) in enumerate(zip(new, context, strict=True)):
        rows = slice(start, start + count)
        alone = arguments | {name: arguments[name][rows].clone() for name in ("query", "key", "value")}
        alone["block_table"] = arguments["block_table"][seq : seq + 1].clone()
        alone["cu_seqlens_q"] = torch.tensor([0, count], dtype=torch.int32, device=DEVICE)
        alone["context_lens"] = torch.tensor([length], dtype=torch.int32, device=DEVICE)
        alone["max_seqlen_q"] = count
        assert torch.equal(gpu.prefill_attention(**alone), batch[rows])
        start += count


def test_padded_bounds_change_nothing() -> None:
    arguments = _arguments([7, 3], [33, 0])
    padded = arguments | {"max_seqlen_q": 10, "block_table": arguments["block_table"].repeat(1, 3)[:, :5]}
    assert torch.equal(gpu.prefill_attention(**padded), gpu.prefill_attention(**arguments))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": torch.ones(4, 3, 64)}, r"query: num_heads must be a multiple of 2 key heads, got \[4, 3, 64\]"),
        ({"query": torch.ones(4, 4, 257)}, r"query: head_dim must be 1 to 256, got shape \[4, 4, 257\]"),
        ({"key": torch.ones(4, 1, 64)}, r"key: expected shape \[4, 2, 64\], got \[4, 1, 64\]"),
        ({"value": torch.ones(4, 2, 64).half()}, "value: expected the dtype of query, torch.float32"),
        ({"value": torch.ones(4, 2, 128)[..., ::2]}, "value: the last dimension must have stride 1"),
        ({"key_cache": torch.ones(2, 16, 64)}, r"key_cache: expected shape .*, got \[2, 16, 64\]"),
        ({"block_table": torch.zeros(2, 1).int()}, r"block_table: expected shape \[1, max_blocks\], got \[2, 1\]"),
        ({"block_table": torch.zeros(1, 1).long()}, "block_table: expected torch.int32, got torch.int64"),
        ({"cu_seqlens_q": torch.zeros(3).int()}, r"cu_seqlens_q: expected shape \[2\], got \[3\]"),
        ({"context_lens": torch.zeros(1).long()}, "context_lens: expected torch.int32, got torch.int64"),
        ({"max_seqlen_q": 5}, "max_seqlen_q: expected 0 to 4, the number of tokens, got 5"),
        ({"scale": 0.0}, "scale: must be above 0, got 0.0"),
        ({"sliding_window": -1}, "sliding_window: must be at least 1, or 0 for none, got -1"),
        ({"soft_cap": -1.0}, "soft_cap: must be above 0, or 0 for none, got -1.0"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "query": torch.ones(4, 4, 64),
        "key": torch.ones(4, 2, 64),
        "value": torch.ones(4, 2, 64),
        "key_cache": torch.ones(2, 16, 2, 64),
        "value_cache": torch.ones(2, 16, 2, 64),
        "block_table": torch.zeros(1, 1, dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 4], dtype=torch.int32),
        "context_lens": torch.tensor([16], dtype=torch.int32),
        "max_seqlen_q": 4,
        "scale": 0.125,
    }
    prefill_attention(**arguments)
    with pytest.raises(ValueError, match=message):
        prefill_attention(**(arguments | changed))
