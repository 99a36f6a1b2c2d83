"""Bandwidth of apply_bitmask: reads the mask, writes the logits of the half that it forbids."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

# Llama 3's; the models' own differ less than their hidden sizes.
_VOCAB_SIZE = 128256


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Masks of num_tokens rows that forbid every second token."""
    logits = torch.randn(num_tokens, _VOCAB_SIZE, device=device, dtype=dtype)
    bitmask = torch.full((num_tokens, _VOCAB_SIZE // 32), 0x55555555, device=device, dtype=torch.int32)
    return Case((logits, bitmask), bytes_moved=logits.nbytes // 2 + bitmask.nbytes)
