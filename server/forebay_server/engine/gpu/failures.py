"""What the errors of a device mean: which end the engine, with which exit code, and which only a step.

Torch has classes of its own for some of them; others, and Triton's, are RuntimeErrors that only their text tells apart.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from forebay_server.errors import ExitCode, StartupError

OUT_OF_MEMORY = "out of memory on the device"
"""How a step's error begins that ran out of it."""

_OF_DEVICE = ("CUDA error", "HIP error", "Triton Error", "CUBLAS_STATUS", "HIPBLAS_STATUS", "cuDNN error", "NCCL error")
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIPBLAS_STATUS_ALLOC_FAILED")
_HINTS = {
    "uncorrectable ECC": "the GPU's memory is damaged: drain the node, and reset or replace the GPU",
    "nvlink": "the link between GPUs failed: look at the kernel log for Xid errors",
    "no kernel image": "this build of torch has no code for this GPU: use one that has",
    "driver version is insufficient": "the node's driver is older than this build of torch needs",
}
"""What helps, by words of the text; for all others starting again is what can be tried."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device had no memory left; the engine can go on afterwards."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return _is_of_device(error) and any(words in str(error) for words in _NO_MEMORY)


def device_failure(error: BaseException) -> StartupError | None:
    """Exit code 15 for an error after which the device computes nothing more; None for any other."""
    if is_out_of_memory(error) or not _is_of_device(error):
        return None
    text = _first_line(error)
    hints = [hint for words, hint in _HINTS.items() if words.lower() in text.lower()]
    return StartupError(
        ExitCode.DEVICE_LOST,
        "DeviceLost",
        f"the device failed: {text}",
        suggestion=hints[0] if hints else "start again; if it comes back, look at the kernel log for Xid errors",
    )


def step_error(error: BaseException) -> str:
    """What the requests of a failed step are told."""
    if is_out_of_memory(error):
        return f"{OUT_OF_MEMORY}: {_first_line(error)}"
    return f"the step failed: {type(error).__name__}: {error}"


def failed_before_serving(what: str, step_error_text: str) -> StartupError:
    """A step that fails before the first request: too little memory (14), or a model that computes nonsense (16)."""
    if step_error_text.startswith(OUT_OF_MEMORY):
        return StartupError(
            ExitCode.KV_CACHE_DOES_NOT_FIT,
            "KVCacheDoesNotFit",
            f"{what}: {step_error_text}",
            suggestion="use a smaller --kv-cache-tokens or --max-num-batched-tokens",
        )
    return StartupError(ExitCode.CORRUPT_WEIGHTS, "CorruptWeights", f"{what}: {step_error_text}")


def check_compiler(device: torch.device) -> None:
    """Refuse a GPU where Triton cannot build its link to the driver, before anything is loaded.

    Raises:
        StartupError: 2 when there is no C compiler.
    """
    if device.type == "cuda" and not any(map(shutil.which, (os.environ.get("CC") or "gcc", "clang"))):
        raise StartupError(
            ExitCode.BAD_CONFIGURATION,
            "NoCompiler",
            "kernels cannot be started: Triton needs a C compiler on GPUs, and there is no gcc, clang or $CC",
            suggestion="build the image with --build-arg WITH_COMPILER=1, or install gcc",
        )


@contextmanager
def while_allocating(what: Literal["weights", "KV cache"]) -> Iterator[None]:
    """Turn errors of the device while something is put into its memory into exit codes.

    Raises:
        StartupError: 13 or 14 when the memory does not suffice, 15 when the device fails.
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            code, reason = {
                "weights": (ExitCode.WEIGHTS_DO_NOT_FIT, "WeightsDoNotFit"),
                "KV cache": (ExitCode.KV_CACHE_DOES_NOT_FIT, "KVCacheDoesNotFit"),
            }[what]
            text = f"the {what} did not fit: {_first_line(error)}"
            raise StartupError(code, reason, text, suggestion="is another process on this GPU?") from error
        lost = device_failure(error)
        if lost is not None:
            raise lost from error
        raise


def _is_of_device(error: BaseException) -> bool:
    if isinstance(error, torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_DEVICE)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
