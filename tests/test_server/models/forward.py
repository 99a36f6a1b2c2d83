"""Logits of our models, computed as the engine would: in chunks, through the paged cache."""

from collections.abc import Sequence
from pathlib import Path

import torch

from forebay_server.layers.attention import SequenceSlice, build_attention_metadata
from forebay_server.layers.kv_cache import KVCache
from forebay_server.layers.rotary_embedding import rotary_tables
from forebay_server.models.decoder import CausalLM
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.stages import WHOLE, Stage
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model

BLOCK_SIZE = 4
CPU = torch.device("cpu")


def load(path: Path, dtype: torch.dtype = torch.float32, group: RankGroup = ONE_RANK, stage: Stage = WHOLE) -> CausalLM:
    """The model of a checkpoint, or one rank's share of it."""
    return load_model(open_checkpoint(path), dtype, CPU, available_bytes=1 << 30, group=group, stage=stage).model


@torch.inference_mode()
def logits_of(
    model: CausalLM | Sequence[CausalLM],
    prompt: Sequence[int],
    chunk_sizes: Sequence[int] = (),
    max_model_len: int = 512,
) -> torch.Tensor:
    """[len(prompt), vocab_size]: the prompt in chunks of these sizes (the rest as one), a size of 1 being a decode.

    Args:
        model: or its stages.
        prompt: token ids.
        chunk_sizes: of the chunks.
        max_model_len: positions of the rotary table.
    """
    stages = [model] if isinstance(model, CausalLM) else model
    num_blocks = -(-len(prompt) // BLOCK_SIZE)
    caches = [_kv_cache(stage.cache_config, num_blocks) for stage in stages]
    block_ids = list(range(num_blocks))[::-1]
    tables = rotary_tables(stages[0].config, max_model_len)
    found = []
    done = 0
    sizes = [*chunk_sizes, len(prompt) - sum(chunk_sizes)]
    for size in filter(None, sizes):
        part = SequenceSlice(size, done, block_ids)
        positions = torch.arange(done, done + size)
        hidden: torch.Tensor | None = None
        for stage, kv_cache in zip(stages, caches, strict=True):
            config = stage.cache_config
            windows = {config.sliding_window(layer) for layer in range(config.num_layers)}
            hidden = stage(
                torch.tensor(prompt[done : done + size]),
                positions,
                tables,
                kv_cache,
                build_attention_metadata([part], BLOCK_SIZE, CPU, windows),
                torch.arange(size),
                hidden,
            )
        assert hidden is not None
        found.append(stages[-1].logits(hidden))
        done += size
    return torch.cat(found)


def _kv_cache(config: ModelConfig, num_blocks: int) -> KVCache:
    return KVCache(torch.zeros(config.num_layers, 2, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim))
