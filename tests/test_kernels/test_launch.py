from collections.abc import Callable
from typing import Any

import pytest
import torch

from forebay_kernels.gpu.launch import Launch, block_of, warps_of
from forebay_kernels.gpu.rms_norm import add_rms_norm_launch, rms_norm_launch
from forebay_kernels.gpu.rotary import rotary_launch
from forebay_kernels.gpu.silu_and_mul import silu_and_mul_launch
from tests.test_kernels.comparison import DEVICE

GUARD = 4096
SENTINEL = 777.0


class _RecordingKernel:
    """Stands where a Triton function does, and keeps what it was launched with."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda **arguments: self.launches.append((grid, arguments))


@pytest.mark.parametrize("grid", [(0,), (4, 0), (0, 4)])
def test_an_empty_grid_is_not_launched(grid: tuple[int, ...]) -> None:
    kernel = _RecordingKernel()
    Launch(kernel=kernel, grid=grid, arguments={}, num_warps=4).run()
    assert kernel.launches == []


def test_a_launch_hands_over_its_arguments_and_options() -> None:
    kernel = _RecordingKernel()
    Launch(kernel=kernel, grid=(3, 2), arguments={"BLOCK": 8}, num_warps=4).run()
    assert kernel.launches == [((3, 2), {"BLOCK": 8, "num_warps": 4, "enable_fp_fusion": True})]


@pytest.mark.parametrize(("num_elements", "block"), [(1, 1), (2, 2), (3, 4), (576, 1024), (1024, 1024), (1025, 2048)])
def test_a_block_is_the_next_power_of_two(num_elements: int, block: int) -> None:
    assert block_of(num_elements) == block


@pytest.mark.parametrize(("block", "warps"), [(1, 1), (512, 1), (1024, 2), (8192, 16), (32_768, 16)])
def test_warps_follow_the_block(block: int, warps: int) -> None:
    assert warps_of(block, elements_per_thread=16) == warps


def _guarded(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A contiguous tensor of this shape, and the memory on both sides of it."""
    num_elements = torch.Size(shape).numel()
    memory = torch.full((num_elements + 2 * GUARD,), SENTINEL, device=DEVICE)
    return memory[GUARD : GUARD + num_elements].view(shape), memory


def _launches() -> dict[str, tuple[Launch, list[tuple[torch.Tensor, torch.Tensor]]]]:
    """Every kernel at sizes that fill no block, with its outputs guarded."""
    rows, weight = torch.randn(3, 577, device=DEVICE), torch.randn(577, device=DEVICE)
    query, key = torch.randn(3, 9, 80, device=DEVICE), torch.randn(3, 5, 80, device=DEVICE)
    positions, cache = torch.arange(3, device=DEVICE), torch.randn(3, 80, device=DEVICE)
    normed, fused, total = _guarded(3, 577), _guarded(3, 577), _guarded(3, 577)
    turned_query, turned_key, activated = _guarded(3, 9, 80), _guarded(3, 5, 80), _guarded(3, 1100)
    gate_up = torch.randn(3, 2200, device=DEVICE)
    return {
        "rms_norm": (rms_norm_launch(normed[0], rows, weight, 1e-5), [normed]),
        "add_rms_norm": (add_rms_norm_launch(fused[0], total[0], rows, rows, weight, 1e-5), [fused, total]),
        "rotary": (
            rotary_launch(turned_query[0], turned_key[0], query, key, positions, cache),
            [turned_query, turned_key],
        ),
        "silu_and_mul": (silu_and_mul_launch(activated[0], gate_up), [activated]),
    }


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "rotary", "silu_and_mul"])
def test_a_kernel_writes_all_of_its_outputs_and_nothing_beside_them(name: str) -> None:
    launch, outputs = _launches()[name]
    launch.run()
    for output, memory in outputs:
        assert not bool((output == SENTINEL).any())
        assert bool((memory[:GUARD] == SENTINEL).all())
        assert bool((memory[-GUARD:] == SENTINEL).all())
