"""The keys and values of all tokens, in pages, in a float dtype or in 8 bits with a scale for each token and head.

Quantized per token and head there is nothing to calibrate, no token's range touches another's, and a block that is
found again carries its scales. Whoever attends sees keys and values as they were written, rounding included, those of
its own step too: so an answer does not depend on how much of its prompt came from the cache.
"""

from dataclasses import dataclass

import torch

from forebay_kernels.reference.quantization import quantize_rows


@dataclass(frozen=True, slots=True)
class Pages:
    """Keys or values of one layer."""

    numbers: torch.Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim]; slots that were never written must be finite."""
    scales: torch.Tensor | None
    """[num_blocks, block_size, num_kv_heads], float32: a number means number * scale; None: a number means itself."""

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Put rows into slots and return them as they will be read.

        Args:
            slots: [num_tokens], int64: block * block_size + offset.
            rows: [num_tokens, num_kv_heads, head_dim].

        Returns:
            As rows, rounded as the pages round.
        """
        if self.scales is None:
            rounded = rows.to(self.numbers.dtype)
            self.numbers.flatten(0, 1).index_copy_(0, slots, rounded)
            return rounded.to(rows.dtype)
        numbers, scales = quantize_rows(rows, self.numbers.dtype)
        self.numbers.flatten(0, 1).index_copy_(0, slots, numbers)
        self.scales.flatten(0, 1).index_copy_(0, slots, scales)
        return (numbers.float() * scales.unsqueeze(-1)).to(rows.dtype)

    def as_read(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows as they will be read once they are written: [num_tokens, num_kv_heads, head_dim], rounded."""
        if self.scales is None:
            return rows.to(self.numbers.dtype).to(rows.dtype)
        numbers, scales = quantize_rows(rows, self.numbers.dtype)
        return (numbers.float() * scales.unsqueeze(-1)).to(rows.dtype)

    def gather(self, block_table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Copy the blocks of a [size, width] table: [size, num_kv_heads, width * block_size, head_dim], dtype."""
        size = block_table.shape[0]
        # whole blocks are copied as rows: 2-3 times faster than advanced indexing (0.44, not 1.56 ms, 50 x 256 tokens)
        rows = self.numbers.flatten(1).index_select(0, block_table.flatten())
        gathered = rows.view(size, -1, *self.numbers.shape[2:])  # [size, width * block_size, num_kv_heads, head_dim]
        if self.scales is not None:
            scales = self.scales.flatten(1).index_select(0, block_table.flatten())
            gathered = gathered.float() * scales.view(size, -1, self.numbers.shape[2], 1)
        return gathered.transpose(1, 2).to(dtype)


@dataclass(frozen=True, slots=True)
class KVCache:
    """The pages of all layers; index 0 of the second dimension holds keys, index 1 values."""

    numbers: torch.Tensor
    """[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], a float dtype or int8."""
    scales: torch.Tensor | None = None
    """[num_layers, 2, num_blocks, block_size, num_kv_heads], float32, contiguous, for int8."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.numbers.shape[3]

    @property
    def num_bytes(self) -> int:
        """Bytes in memory, scales included."""
        parts = (self.numbers,) if self.scales is None else (self.numbers, self.scales)
        return sum(part.numel() * part.element_size() for part in parts)

    def layer(self, index: int) -> tuple[Pages, Pages]:
        """Keys and values of one layer."""
        scales = (None, None) if self.scales is None else self.scales[index]
        return Pages(self.numbers[index, 0], scales[0]), Pages(self.numbers[index, 1], scales[1])

    def clear(self, block_ids: torch.Tensor) -> None:
        """Zero blocks that get a new owner: attention multiplies unwritten slots by 0, and 0 * NaN would be NaN."""
        self.numbers.index_fill_(2, block_ids, 0)
        if self.scales is not None:
            self.scales.index_fill_(2, block_ids, 0)
