"""Production launches of attention and of the writes to its cache."""

import torch

from forebay_kernels.production.tensors import NUM_TOKENS, Production, cache, heads, heads_name, positions, tensor
from forebay_kernels.shapes import ModelShape
from forebay_kernels.targets import Target

_CACHES = {"plain": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
_NUM_SEQS = 4
_NUM_SPLITS = 8


def cache_launches(shape: ModelShape, dtype: torch.dtype) -> Production:
    """Yield the writes of one model's heads to caches of each format."""
    from forebay_kernels.gpu.write_kv_cache import write_kv_cache_launch

    query, key, value = heads(shape, dtype)
    token_positions, cos_sin_cache = positions(shape)
    for name, cache_dtype in _CACHES.items():
        pages, scales = cache(shape, cache_dtype or dtype)
        launch = write_kv_cache_launch(
            query, key, query, key, value, token_positions, cos_sin_cache, pages, pages, token_positions, scales, scales
        )
        yield "write_kv_cache", f"{heads_name(shape)}, {name}", launch


def attention_launches(shape: ModelShape, dtype: torch.dtype, target: Target) -> Production:
    """Yield prefill and decode of one model's heads over caches of each format; heads of 256 as Gemma 2 has them."""
    from forebay_kernels.gpu.attention_mass import mass_launch
    from forebay_kernels.gpu.decode_attention import combine_launch, runs_of_block, split_launch
    from forebay_kernels.gpu.prefill_attention import prefill_attention_launch

    query, key, value = heads(shape, dtype)
    output = tensor(*query.shape, dtype=dtype)
    block_table = tensor(_NUM_SEQS, 64, dtype=torch.int32)
    lengths, bounds = tensor(_NUM_SEQS, dtype=torch.int32), tensor(_NUM_SEQS + 1, dtype=torch.int32)
    partial = tensor(_NUM_SEQS, shape.num_heads, _NUM_SPLITS, shape.head_dim, dtype=torch.float32)
    log_sum = tensor(_NUM_SEQS, shape.num_heads, _NUM_SPLITS, dtype=torch.float32)
    scale = shape.head_dim**-0.5
    window, cap, special = (4096, 50.0, ", window, cap") if shape.head_dim == 256 else (0, 0.0, "")
    for name, cache_dtype in _CACHES.items():
        if shape.head_dim == 256 and cache_dtype:
            continue
        pages, scales = cache(shape, cache_dtype or dtype)
        configuration = f"{heads_name(shape)}, {name}{special}"
        yield "prefill_attention", configuration, prefill_attention_launch(
            output, query, key, value, pages, pages, block_table, bounds, lengths, NUM_TOKENS, scale, window, cap,
            scales, scales, target=target,
        )  # fmt: skip
        yield "decode_attention", f"{configuration}, split", split_launch(
            partial, log_sum, query[:_NUM_SEQS], pages, pages, block_table, lengths, scale, window, cap, scales, scales,
            target=target,
        )  # fmt: skip
    plain_pages, _ = cache(shape, dtype)
    if target.copies_tiles and shape.head_dim == 128:
        # No slice of a projection, and not aligned for copies by descriptor.
        unaligned = tensor(NUM_TOKENS, shape.num_kv_heads, shape.head_dim + 2, dtype=dtype)[..., : shape.head_dim]
        yield "prefill_attention", f"{heads_name(shape)}, plain, unaligned", prefill_attention_launch(
            output, query, unaligned, unaligned, plain_pages, plain_pages, block_table, bounds, lengths, NUM_TOKENS,
            scale, 0, 0.0, None, None, target=target,
        )  # fmt: skip
    mass = tensor(*block_table.shape, dtype=torch.float32)
    num_runs = block_table.shape[1] * runs_of_block(query, pages)
    run_log_sums = tensor(_NUM_SEQS, shape.num_heads, num_runs, dtype=torch.float32)
    yield "decode_attention", f"{heads_name(shape)}, plain, split with mass", split_launch(
        partial, log_sum, query[:_NUM_SEQS], plain_pages, plain_pages, block_table, lengths, scale, 0, 0.0, None, None,
        run_log_sums, target=target,
    )  # fmt: skip
    mass_of_blocks = mass_launch(mass, run_log_sums, log_sum, lengths, pages.shape[1])
    yield "decode_attention", f"{heads_name(shape)}, mass", mass_of_blocks
    combine = combine_launch(output[:_NUM_SEQS], partial, log_sum, lengths, window)
    yield "decode_attention", f"{heads_name(shape)}, combine", combine
