"""How large the KV cache becomes, and when it is refused."""

from typing import Any

import pytest
import torch

from forebay_server.config import EngineConfig
from forebay_server.engine.kv_cache import KVCacheLayout, allocate_kv_cache, plan_kv_cache, working_bytes
from forebay_server.errors import ExitCode, StartupError
from forebay_server.models.model_config import ModelConfig

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    max_position=4096,
    rope_theta=1e4,
)
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, head_dim, bfloat16


def plan(num_tokens_that_fit: int, **options: Any) -> KVCacheLayout:
    config = EngineConfig(model="m", **options)
    available = working_bytes(config, MODEL) + num_tokens_that_fit * BYTES_PER_TOKEN
    return plan_kv_cache(config, MODEL, 4096, torch.bfloat16, available)


def test_asked_size_is_rounded_up_to_whole_blocks() -> None:
    layout = plan(10_000, kv_cache_tokens=1001)
    assert (layout.num_blocks, layout.num_tokens) == (63, 1008)
    assert layout.bytes_per_token == BYTES_PER_TOKEN
    cache = allocate_kv_cache(layout, MODEL, torch.device("cpu"))
    assert cache.numbers.shape == (2, 2, 63, 16, 2, 16)
    assert cache.num_bytes == layout.num_bytes


def test_default_is_room_for_max_num_seqs_short_requests() -> None:
    assert plan(1_000_000, max_num_seqs=64).num_tokens == 64 * 256


def test_default_takes_half_of_what_is_free() -> None:
    assert plan(20_000, max_num_seqs=64).num_tokens == 10_000


def test_default_holds_one_longest_request_if_that_fits_at_all() -> None:
    assert plan(5000, max_num_seqs=64).num_tokens == 4096


def plan_on_gpu(free: int, *, step_bytes: int | None, **options: Any) -> KVCacheLayout:
    config = EngineConfig(model="m", **options)
    return plan_kv_cache(config, MODEL, 4096, torch.bfloat16, free, is_gpu=True, step_bytes=step_bytes)


def test_on_a_gpu_the_default_is_nine_tenths_of_what_the_largest_step_leaves() -> None:
    step_bytes = 777 * BYTES_PER_TOKEN
    layout = plan_on_gpu(step_bytes + 1_000_000 * BYTES_PER_TOKEN, step_bytes=step_bytes)
    assert layout.num_tokens == 900_000


def test_on_a_gpu_a_step_that_was_not_measured_is_counted_by_its_sizes() -> None:
    working = working_bytes(EngineConfig(model="m"), MODEL)
    assert plan_on_gpu(working + 1_000_000 * BYTES_PER_TOKEN, step_bytes=None).num_tokens == 900_000


def test_on_a_gpu_a_given_size_is_not_lengthened() -> None:
    assert plan_on_gpu(10**12, step_bytes=0, kv_cache_tokens=5000).num_tokens == 5008


@pytest.mark.parametrize(
    ("options", "fits", "suggestion"),
    [
        ({"kv_cache_tokens": 5000}, 4000, "--kv-cache-tokens 4000"),
        ({}, 4000, "--max-model-len 4000"),
        ({"kv_cache_tokens": 5000}, -1, "more memory"),
    ],
)
def test_cache_that_does_not_fit_is_refused_with_the_numbers(
    options: dict[str, Any], fits: int, suggestion: str
) -> None:
    with pytest.raises(StartupError) as caught:
        plan(fits, **options)
    error = caught.value
    assert error.exit_code == ExitCode.KV_CACHE_DOES_NOT_FIT
    assert error.need_bytes is not None
    assert error.have_bytes == max(fits, 0) * BYTES_PER_TOKEN
    assert error.need_bytes > error.have_bytes
    assert suggestion in (error.suggestion or "")
