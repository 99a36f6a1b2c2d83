"""The formulas of the roofline page: what the benchmarks count, what the planner counts, and the page itself."""

from pathlib import Path

import pytest

from forebay_kernels.roofline import GPUS, KERNEL_WORK, Gpu, Work, page
from forebay_kernels.shapes import MODEL_SHAPES
from forebay_operator.catalogue.accelerators import accelerators
from tests.test_kernels.test_benchmarks import BYTES_MOVED, FLOPS

ROOT = Path(__file__).parents[2]
LLAMA_8B = MODEL_SHAPES[1]


@pytest.mark.parametrize("name", BYTES_MOVED)
def test_formulas_count_what_the_benchmarks_count(name: str) -> None:
    work = KERNEL_WORK[name](MODEL_SHAPES[0], 10)
    assert work.bytes_moved == BYTES_MOVED[name]
    assert work.flops == FLOPS.get(name, 0)


def test_every_kernel_has_a_formula() -> None:
    assert set(KERNEL_WORK) == set(BYTES_MOVED)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_gpus_are_those_of_the_planner(gpu: Gpu) -> None:
    profile = accelerators()[gpu.name]
    assert gpu.gigabytes_per_second * 10**9 == profile.bandwidth_bytes_per_second
    for number_format in ("bf16", "int8", "fp8"):
        assert gpu.teraflops.get(number_format, 0) * 10**12 == (profile.peak_flops.get(number_format) or 0)


def test_a_token_of_cache_has_the_bytes_that_the_planner_counts() -> None:
    """2 x kv_heads x head_dim x bytes, a layer: what decode attention reads more for each cached token."""
    work = KERNEL_WORK["decode_attention"](LLAMA_8B, 1)
    per_token = 2 * LLAMA_8B.num_kv_heads * LLAMA_8B.head_dim * 2
    others = 2 * LLAMA_8B.num_heads * LLAMA_8B.head_dim * 2 + 64 * 4 + 4
    assert work.bytes_moved == per_token * 1024 + others
    assert per_token * 32 == 131_072  # Llama 3 8B: 128 KiB a token in 32 layers


def test_the_floor_is_the_longer_of_memory_and_products() -> None:
    gpu = Gpu("x", 1000, {"bf16": 100, "int8": 200})
    assert Work(10**9).floor_us(gpu) == pytest.approx(1000)
    assert Work(1, 10**12).floor_us(gpu) == pytest.approx(10_000)
    assert Work(1, 10**12, "int8").floor_us(gpu) == pytest.approx(5000)
    assert Work(1, 10**12, "fp8").floor_us(gpu) == pytest.approx(10_000)
    assert Work(10**9, 1).is_bound_by_memory(gpu)
    assert not Work(1, 10**12).is_bound_by_memory(gpu)


def test_the_page_is_what_the_formulas_say() -> None:
    assert (ROOT / "docs" / "roofline.md").read_text() == page(LLAMA_8B)
