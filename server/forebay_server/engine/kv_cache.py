"""The KV cache: how many blocks it gets, and its tensor."""

from dataclasses import dataclass

import torch

from forebay_kernels.cpu.arena import zeros
from forebay_server.config import EngineConfig
from forebay_server.errors import ExitCode, StartupError
from forebay_server.layers.kv_cache import KVCache
from forebay_server.models.model_config import ModelConfig

SCALE_DTYPE = torch.float32
"""Of a cache of eight bits: one scale for each token and head."""
DEFAULT_TOKENS_PER_SEQUENCE = 256
"""Without --kv-cache-tokens: room for max_num_seqs requests of this length."""
DEFAULT_MEMORY_SHARE = 0.5
"""Without --kv-cache-tokens: no more than this share of the free memory, unless one longest request needs it."""
GPU_MEMORY_SHARE = 0.9
"""The same on a GPU, whose cache has no other bound: the rest is for graphs of more shapes and for compiled kernels."""


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """Size and format of the cache."""

    num_blocks: int
    block_size: int
    bytes_per_token: int
    dtype: torch.dtype

    @property
    def num_tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache takes."""
        return self.num_tokens * self.bytes_per_token


def plan_kv_cache(
    config: EngineConfig,
    model_config: ModelConfig,
    max_model_len: int,
    dtype: torch.dtype,
    available_bytes: int,
    *,
    is_gpu: bool = False,
    step_bytes: int | None = None,
) -> KVCacheLayout:
    """Decide the size; nothing is allocated.

    Args:
        config: says how many tokens, or leaves it open.
        model_config: gives the bytes of a token: 2 * layers * kv_heads * (head_dim * bytes of dtype + scale).
        max_model_len: longest request.
        dtype: of keys and values.
        available_bytes: free after the weights were loaded.
        is_gpu: whether the memory is a GPU's, of which a cache of no given size takes what is free.
        step_bytes: that the largest step takes, where that was measured; None: `working_bytes`.

    Raises:
        StartupError: 14 when the cache does not fit, with the numbers.
    """
    heads_per_token = 2 * model_config.num_layers * model_config.num_kv_heads
    scale_bytes = SCALE_DTYPE.itemsize if dtype.itemsize == 1 else 0
    bytes_per_token = heads_per_token * (model_config.head_dim * dtype.itemsize + scale_bytes)
    have_bytes = available_bytes - (working_bytes(config, model_config) if step_bytes is None else step_bytes)
    num_tokens = config.kv_cache_tokens
    if num_tokens is None:
        affordable = int(max(have_bytes, 0) * (GPU_MEMORY_SHARE if is_gpu else DEFAULT_MEMORY_SHARE)) // bytes_per_token
        wanted = affordable if is_gpu else min(affordable, config.max_num_seqs * DEFAULT_TOKENS_PER_SEQUENCE)
        num_tokens = max(max_model_len, wanted)
    layout = KVCacheLayout(-(-num_tokens // config.block_size), config.block_size, bytes_per_token, dtype)
    if layout.num_bytes > have_bytes:
        fitting = max(have_bytes, 0) // bytes_per_token // config.block_size * config.block_size
        flag = "--max-model-len" if config.kv_cache_tokens is None else "--kv-cache-tokens"
        raise StartupError(
            ExitCode.KV_CACHE_DOES_NOT_FIT,
            "KVCacheDoesNotFit",
            f"a KV cache of {layout.num_tokens:,} tokens needs {layout.num_bytes:,} bytes "
            f"({bytes_per_token:,} a token); {max(have_bytes, 0):,} are free beside weights and working memory",
            need_bytes=layout.num_bytes,
            have_bytes=max(have_bytes, 0),
            suggestion=f"use {flag} {fitting}, or give the pod more memory" if fitting else "give the pod more memory",
        )
    return layout


def working_bytes(config: EngineConfig, model_config: ModelConfig) -> int:
    """Memory that a step needs beside weights and cache: activations of one layer, and the logits while sampling."""
    floats_per_token = 6 * model_config.hidden_size + 3 * model_config.intermediate_size
    floats_per_sample = 4 * model_config.vocab_size
    return 4 * (config.max_num_batched_tokens * floats_per_token + config.max_num_seqs * floats_per_sample)


def allocate_kv_cache(layout: KVCacheLayout, model_config: ModelConfig, device: torch.device) -> KVCache:
    """All zero, with scales where the dtype has eight bits."""
    shape = (model_config.num_layers, 2, layout.num_blocks, layout.block_size, model_config.num_kv_heads)
    sizes = (*shape, model_config.head_dim)
    is_cpu = device.type == "cpu"
    numbers = zeros(sizes, layout.dtype) if is_cpu else torch.zeros(sizes, dtype=layout.dtype, device=device)
    has_scales = layout.dtype.itemsize == 1
    return KVCache(numbers, torch.zeros(shape, dtype=SCALE_DTYPE, device=device) if has_scales else None)
