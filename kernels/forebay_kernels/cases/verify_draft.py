"""Bandwidth of verify_draft with 3 drafts a sequence: two numbers a draft, and the last row."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

# Llama 3's; the models' own differ less than their hidden sizes.
_VOCAB_SIZE = 128256


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One step of num_tokens sequences whose drafts are all accepted."""
    num_rows = 4 * num_tokens
    probs = torch.full((num_rows, _VOCAB_SIZE), 1 / _VOCAB_SIZE, device=device)
    drafts = torch.randint(_VOCAB_SIZE, (num_rows,), device=device)
    bounds = 4 * torch.arange(num_tokens + 1, device=device, dtype=torch.int32)
    draws = torch.rand(num_rows, device=device)
    # Only the last row of a sequence is read whole; the second time it comes out of the GPU's cache.
    bytes_moved = num_tokens * (_VOCAB_SIZE * 4 + 3 * 8) + num_rows * (8 + 4 + 8) + num_tokens * 12
    return Case((probs, drafts, bounds, draws, draws[:num_tokens].clone(), probs), bytes_moved=bytes_moved)
