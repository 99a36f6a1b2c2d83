"""Paged caches for the attention tests: random tokens in random blocks, and slots that must not be read."""

from dataclasses import dataclass

import torch

from forebay_kernels.reference.quantization import LARGEST, quantize_rows
from tests.test_kernels.comparison import DEVICE, random_tensor


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's cache, and which blocks each sequence has."""

    arguments: dict[str, torch.Tensor]
    """key_cache and value_cache, and the scales if it is quantized."""
    block_table: torch.Tensor
    lengths: torch.Tensor


def paged_cache(
    lengths: list[int], *, num_kv_heads: int, head_dim: int, dtype: torch.dtype, block_size: int = 16, seed: int = 5
) -> PagedCache:
    """Fill a cache of dtype with sequences of these lengths.

    Every slot that holds no token holds 448 or 127 times a large scale, or 1e4: reading one by mistake is seen.
    The table's entries beyond a sequence's last block point to a block of such slots.
    """
    blocks_of = [-(-length // block_size) for length in lengths]
    num_blocks = sum(blocks_of) + 1
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed))
    poison, free = int(order[0]), order[1:].tolist()
    table = torch.full((len(lengths), max(blocks_of, default=0) + 2), poison, dtype=torch.int32)
    is_token = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for seq, (length, count) in enumerate(zip(lengths, blocks_of, strict=True)):
        blocks = [free.pop() for _ in range(count)]
        table[seq, :count] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            is_token[blocks[position // block_size], position % block_size] = True
    arguments = {}
    for index, name in enumerate(("key", "value")):
        numbers = random_tensor(
            num_blocks, block_size, num_kv_heads, head_dim, dtype=torch.float32, seed=seed + 1 + index
        )
        numbers[~is_token.to(DEVICE)] = 1e4
        if dtype in LARGEST:
            arguments[f"{name}_cache"], arguments[f"{name}_scales"] = quantize_rows(numbers, dtype)
        else:
            arguments[f"{name}_cache"] = numbers.to(dtype)
    lengths_tensor = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    return PagedCache(arguments, table.to(DEVICE), lengths_tensor)
