"""Bandwidth of sample with top_p: reads the logits once; what it reads again comes out of the GPU's cache."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

# Llama 3's; the models' own differ less than their hidden sizes.
_VOCAB_SIZE = 128256


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One step of num_tokens requests."""
    logits = torch.randn(num_tokens, _VOCAB_SIZE, device=device) * 3
    ones = torch.ones(num_tokens, device=device)
    top_ks = torch.zeros(num_tokens, device=device, dtype=torch.int32)
    draws = torch.rand(num_tokens, device=device)
    bytes_moved = logits.nbytes + num_tokens * (5 * 4 + 8 + 4)
    return Case((logits, ones, top_ks, 0.9 * ones, 0 * ones, draws), bytes_moved=bytes_moved)
