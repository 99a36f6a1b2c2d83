"""What the largest step takes of a GPU, measured before there is a KV cache, so that the cache can have the rest."""

import numpy as np
import torch

from forebay_server.config import EngineConfig
from forebay_server.engine.flat_batch import NUM_SAMPLING_VALUES, BatchPart, FlatBatch
from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.gpu.device_sampler import start_sampling
from forebay_server.engine.gpu.memory import UsedMemory
from forebay_server.engine.kv_cache import KVCacheLayout, allocate_kv_cache
from forebay_server.models.decoder import CausalLM

_MOST_PROMPTS = 4
"""A step gives one prompt at most a quarter of its tokens while others want some."""


def largest_step_bytes(
    model: CausalLM, config: EngineConfig, max_model_len: int, kv_dtype: torch.dtype, used: UsedMemory
) -> int:
    """Bytes that prompts of a whole step, the sampling of as many rows as may be, and the largest graph take.

    All prompts write their keys and values to one and the same block: nobody reads them.

    Args:
        model: with its weights; of one rank.
        config: of the engine.
        max_model_len: longest request.
        kv_dtype: of keys and values.
        used: counts from now on.
    """
    device = next(model.parameters()).device
    layout = KVCacheLayout(num_blocks=1, block_size=config.block_size, bytes_per_token=0, dtype=kv_dtype)
    forward = ForwardPass(model, allocate_kv_cache(layout, model.cache_config, device), max_model_len)
    with torch.inference_mode():
        hidden = forward.compute(_largest_batch(config, max_model_len))
        start_sampling(forward.logits(hidden), forward.sampling_values)
        del hidden
        forward.prepare_graphs(config.max_num_seqs)
    return used.peak_bytes()


def _largest_batch(config: EngineConfig, max_model_len: int) -> FlatBatch:
    num_left, parts = config.max_num_batched_tokens, list[BatchPart]()
    longest = min(-(-num_left // min(_MOST_PROMPTS, config.max_num_seqs)), max_model_len - 1)
    while num_left > 0 and len(parts) < config.max_num_seqs:
        length = min(longest, num_left)
        parts.append(BatchPart(str(len(parts)), [0] * length, 0, [0] * -(-length // config.block_size)))
        num_left -= length
    parts.sort(key=lambda part: len(part.token_ids) > 1)
    num_tokens = sum(len(part.token_ids) for part in parts)
    rows = [row % num_tokens for row in range(config.max_num_seqs)]
    return FlatBatch([], parts, rows, np.zeros((NUM_SAMPLING_VALUES, len(rows)), dtype=np.float32))
