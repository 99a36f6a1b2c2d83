"""Which runner computes a model: the C++ step on CPUs where it can, torch operators everywhere else."""

import logging

import torch

from forebay_kernels.cpu.library import best_variant
from forebay_kernels.cpu.llama_step import LlamaStep
from forebay_kernels.dispatch import runs_triton
from forebay_server.engine.cpu_runner import CpuRunner
from forebay_server.engine.cpu_weights import sizes_of, take_weights, why_not
from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.gpu.runner import GpuRunner
from forebay_server.engine.model_runner import ModelRunner, Runner
from forebay_server.layers.kv_cache import KVCache
from forebay_server.layers.rotary_embedding import rotary_tables
from forebay_server.messages import ComputedBy
from forebay_server.models.decoder import CausalLM
from forebay_server.models.model_config import ModelConfig
from forebay_server.models.registry import model_class
from forebay_server.parallel.runner import ParallelRunner
from forebay_server.parallel.start import RankZero

logger = logging.getLogger(__name__)

_CACHE_DTYPES = (torch.float32, torch.bfloat16, torch.int8)


def build_runner(
    model: CausalLM,
    kv_cache: KVCache,
    max_model_len: int,
    max_num_batched_tokens: int,
    ranks: RankZero,
) -> Runner:
    """Pick a runner, say which in the log, and give it the weights.

    Args:
        model: with its weights, which the runner may take out of it.
        kv_cache: all zero, of the model's size.
        max_model_len: longest request.
        max_num_batched_tokens: tokens of a step at most.
        ranks: those that hold the rest of a divided model.
    """
    if ranks.others is not None:
        return ParallelRunner(ForwardPass(model, kv_cache, max_model_len), ranks.connections.link, ranks.others)
    if runs_triton(kv_cache.numbers.device.type):
        logger.info("steps are computed by Triton kernels")
        return GpuRunner(ForwardPass(model, kv_cache, max_model_len))
    reason = _why_torch(model, kv_cache)
    variant = best_variant()
    if reason is None and variant is None:
        reason = "the C++ library was not built, or this CPU has no AVX2"
    if reason is not None or variant is None:
        logger.info("steps are computed by torch operators, slower than by the C++ library: %s", reason)
        return ModelRunner(ForwardPass(model, kv_cache, max_model_len))
    num_threads = torch.get_num_threads()
    sizes = sizes_of(model)
    step = LlamaStep(
        sizes,
        take_weights(model),
        kv_cache.numbers,
        rotary_tables(model.config, max_model_len)[0].contiguous(),
        max_tokens=max_num_batched_tokens,
        num_threads=num_threads,
        variant=variant,
        kv_scales=kv_cache.scales,
    )
    logger.info("steps are computed by the C++ library: %s, %d threads", variant, num_threads)
    return CpuRunner(step)


def computed_by(runner: Runner, device: torch.device) -> ComputedBy:
    """What computes the steps of a runner on this device."""
    if isinstance(runner, CpuRunner):
        return "cpu library"
    return "triton" if runs_triton(device.type) else "torch"


def is_compiled(model_config: ModelConfig, device: torch.device, num_ranks: int) -> bool:
    """Whether the C++ library would compute this model, given weights that it can read."""
    if runs_triton(device.type) or num_ranks > 1 or best_variant() is None:
        return False
    with torch.device("meta"):
        model = model_class(model_config)(model_config)
    return why_not(model) is None


def _why_torch(model: CausalLM, kv_cache: KVCache) -> str | None:
    if kv_cache.numbers.dtype not in _CACHE_DTYPES:
        return f"the KV cache is {str(kv_cache.numbers.dtype).removeprefix('torch.')}"
    return why_not(model)
