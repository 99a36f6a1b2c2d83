"""Measures every kernel beside its roofline: on a GPU what share of it is reached, without one the floor alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from forebay_kernels.benchmark import check, median_seconds
from forebay_kernels.cases import case_maker
from forebay_kernels.dispatch import implementation
from forebay_kernels.roofline import GPUS, KERNEL_WORK, Gpu
from forebay_kernels.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel at one size."""

    kernel: str
    model: str
    num_tokens: int
    bytes_moved: int
    flops: int
    bound_by: str | None
    """memory or products; None where the GPU's peaks are not known, as for the next one."""
    floor_us: float | None
    measured_us: float | None = None
    """None: not measured."""
    share: float | None = None
    """floor / measured: 1 is the roofline."""
    error: str | None = None
    """Why there is no measurement, where one was tried."""


def gpu_of(name: str) -> Gpu | None:
    """The GPU of the roofline that a name means: `h200`, `h200-141gb`, `NVIDIA H200`, `NVIDIA A100-SXM4-80GB`."""
    words = name.lower().replace("-", " ").split()
    for gpu in GPUS:
        model, memory = gpu.name.split("-")
        other_memory = [word for word in words if word.endswith("gb") and word[:-2].isdigit() and word != memory]
        if model in words and not other_memory:
            return gpu
    return None


def figures(
    kernels: Sequence[str],
    shapes: Sequence[ModelShape],
    num_tokens: Sequence[int],
    gpu: Gpu | None,
    device: torch.device | None,
    seconds: float,
) -> Iterator[Figure]:
    """Every kernel at every size; one that fails says so, and the others go on.

    Args:
        kernels: names in `KERNEL_WORK`.
        shapes: whose sizes.
        num_tokens: tokens, sequences, rows or blocks of a call.
        gpu: whose roofline; None: there are no peaks to compare with.
        device: that measures; None: nothing is measured.
        seconds: for each measurement.
    """
    for kernel in kernels:
        for shape in shapes:
            for count in num_tokens:
                work = KERNEL_WORK[kernel](shape, count)
                floor = None if gpu is None else work.floor_us(gpu)
                bound_by = None if gpu is None else "memory" if work.is_bound_by_memory(gpu) else "products"
                measured, error = None, None
                if device is not None:
                    measured, error = _measure(kernel, shape, count, device, seconds)
                yield Figure(
                    kernel,
                    shape.name,
                    count,
                    work.bytes_moved,
                    work.flops,
                    bound_by,
                    floor,
                    measured,
                    floor / measured if floor is not None and measured else None,
                    error,
                )


def _measure(
    kernel: str, shape: ModelShape, num_tokens: int, device: torch.device, seconds: float
) -> tuple[float | None, str | None]:
    """(microseconds, None), or (None, what went wrong); a kernel whose result is wrong is not timed."""
    try:
        case = case_maker(kernel)(shape, num_tokens, torch.bfloat16, device)
        run = implementation(kernel, device.type)
        check(kernel, run, case, torch.bfloat16)
        return median_seconds(run, case, device, seconds) * 1e6, None
    except (RuntimeError, AssertionError, ValueError) as error:  # torch's and Triton's errors are RuntimeErrors
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
