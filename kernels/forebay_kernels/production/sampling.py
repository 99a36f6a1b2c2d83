"""Production launches of sampling, of speculation and of copies of cache blocks."""

import torch

from forebay_kernels.production.tensors import Production, cache, tensor
from forebay_kernels.shapes import ModelShape

_VOCAB_SIZE = 128256
_NUM_ROWS = 16


def sampling_launches() -> Production:
    """Yield them for a vocabulary of Llama 3's size."""
    from forebay_kernels.gpu.apply_bitmask import apply_bitmask_launch
    from forebay_kernels.gpu.sample import sample_launch
    from forebay_kernels.gpu.verify_draft import verify_draft_launch

    logits = tensor(_NUM_ROWS, _VOCAB_SIZE, dtype=torch.float32)
    bitmask = tensor(_NUM_ROWS, _VOCAB_SIZE // 32, dtype=torch.int32)
    floats, integers = tensor(_NUM_ROWS, dtype=torch.float32), tensor(_NUM_ROWS, dtype=torch.int32)
    token_ids = tensor(_NUM_ROWS, dtype=torch.int64)
    name = f"vocabulary {_VOCAB_SIZE}"
    yield "apply_bitmask", name, apply_bitmask_launch(logits, bitmask)
    yield "sample", name, sample_launch(token_ids, floats, logits, floats, integers, floats, floats, floats)
    bounds = tensor(_NUM_ROWS // 4 + 1, dtype=torch.int32)
    draws = floats[: _NUM_ROWS // 4]
    for drafts, draft_probs in (("n-gram", None), ("drawn", logits)):
        launch = verify_draft_launch(token_ids, integers, logits, token_ids, bounds, floats, draws, draft_probs)
        yield "verify_draft", f"{name}, {drafts} drafts", launch


def copying_launches(shape: ModelShape, dtype: torch.dtype) -> Production:
    """Yield copies of blocks of one model's cache, plain and of eight bits."""
    from forebay_kernels.gpu.gather_kv_blocks import gather_kv_blocks_launch

    blocks = tensor(_NUM_ROWS, dtype=torch.int32)
    for name, cache_dtype in (("plain", dtype), ("int8", torch.int8)):
        launch = gather_kv_blocks_launch(cache(shape, cache_dtype)[0], blocks, blocks)
        yield "gather_kv_blocks", f"heads {shape.num_kv_heads} of {shape.head_dim}, {name}", launch
