"""What one kernel launch consists of, as plain data: the launchers run it, the compile gate compiles it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from forebay_kernels.tuning.tables import Table, shape_class, table_of


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one Triton function: made from tensors by each kernel's `*_launch` function, which is pure."""

    kernel: Any
    """The function that `triton.jit` returned."""
    grid: tuple[int, ...]
    """Number of programs along each axis; a 0 means that there is nothing to do."""
    arguments: dict[str, Any]
    """Every argument by name, constants (tl.constexpr) included."""
    num_warps: int
    """Warps of one program: 32 threads each on NVIDIA, 64 on AMD."""
    num_stages: int | None = None
    """Tiles that a loop loads ahead of the one it computes, that one counted; None: the compiler's default."""

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told beside the arguments."""
        # Triton's default for fusing a product and a sum changes between its versions (on up to 3.9, off from 3.10):
        # said here, the same kernel gives the same bits with each. On: rotary gains, and nothing loses accuracy.
        stages = {} if self.num_stages is None else {"num_stages": self.num_stages}
        return {"num_warps": self.num_warps, "enable_fp_fusion": True, **stages}

    @property
    def shape_class(self) -> str:
        """What a table of measured options knows it by."""
        return shape_class(self.kernel.__name__, self.arguments)

    def run(self) -> None:
        """Start it with the options measured for it, where there are some; as `run_as_is` does."""
        for recorder in _recorders:
            recorder.append(self)
        table = _current_table()
        measured = table.get(self.shape_class) if table else None
        self._start(self.options if measured is None else measured.merged(self.options))

    def run_as_is(self) -> None:
        """Start it on the current stream of the current device, where the tensors must lie; does not wait for it."""
        self._start(self.options)

    def _start(self, options: dict[str, Any]) -> None:
        # CUDA refuses a grid with a zero, and an empty batch is no error.
        if 0 not in self.grid:
            self.kernel[self.grid](**self.arguments, **options)


_recorders: list[list[Launch]] = []


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Collect what is launched meanwhile."""
    launches: list[Launch] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        _recorders.remove(launches)


def _current_table() -> Table:
    """The measured options of the current GPU; none in the interpreter."""
    return {} if is_interpreted() else _table_of_device(torch.cuda.current_device())


@cache
def _table_of_device(index: int) -> Table:
    return table_of(torch.cuda.get_device_name(index))


def block_of(num_elements: int) -> int:
    """Return the smallest block that holds num_elements: Triton's blocks are powers of two."""
    return int(triton.next_power_of_2(num_elements))


def warps_of(block_size: int, *, elements_per_thread: int) -> int:
    """Return the warps for a block so that each of 32 lanes holds elements_per_thread; 1 to 16, a power of two."""
    return min(max(block_size // (32 * elements_per_thread), 1), 16)


def is_interpreted() -> bool:
    """Say whether Triton runs kernels in its interpreter in this process."""
    return bool(triton.knobs.runtime.interpret)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """Return the type in which a kernel multiplies matrices of dtype: the same, except where it is interpreted.

    The interpreter keeps bfloat16 as 16-bit integers and would multiply those; float32 holds the same products.
    """
    if dtype == torch.bfloat16 and is_interpreted():
        return tl.float32
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]
