"""Finds and loads the C++ library: one file for each instruction set, of which the best that this CPU has is taken."""

import ctypes
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

VARIANTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "avx512bf16": frozenset(
            {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"}
        ),
        "avx512vnni": frozenset({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}),
        "avxvnni": frozenset({"avx2", "fma", "f16c", "avx_vnni"}),
        "avx2": frozenset({"avx2", "fma", "f16c"}),
    }
)
"""The flags of /proc/cpuinfo that each variant needs, the best variant first."""

LIBRARIES = Path(__file__).parent / "libraries"
"""Where the build leaves `forebay_<variant>.so`."""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What this CPU can do and the kernel allows, in the kernel's words; empty where that cannot be told."""
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def usable_variants(flags: frozenset[str], libraries: Path = LIBRARIES) -> list[str]:
    """The variants that were built and that a CPU with these flags can run, the best first."""
    return [name for name, needed in VARIANTS.items() if needed <= flags and _file(name, libraries).is_file()]


@cache
def best_variant() -> str | None:
    """The variant for this CPU; None where the library was not built or the CPU has no AVX2."""
    return next(iter(usable_variants(cpu_flags())), None)


@cache
def load_library(variant: str) -> ctypes.CDLL:
    """Load a variant.

    Args:
        variant: one of `usable_variants`; another may end the process with an illegal instruction.

    Raises:
        OSError: there is no such file, or it cannot be loaded.
    """
    library = ctypes.CDLL(str(_file(variant, LIBRARIES)))
    library.forebay_create_step.restype = ctypes.c_void_p
    library.forebay_create_step.argtypes = [ctypes.c_void_p]
    library.forebay_run_step.restype = ctypes.c_int32
    library.forebay_run_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.forebay_run_head.restype = ctypes.c_int32
    library.forebay_run_head.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.forebay_num_threads.restype = ctypes.c_int32
    library.forebay_num_threads.argtypes = [ctypes.c_void_p]
    library.forebay_destroy_step.restype = None
    library.forebay_destroy_step.argtypes = [ctypes.c_void_p]
    library.forebay_quantize.restype = ctypes.c_int32
    library.forebay_quantize.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int32] * 2 + [ctypes.c_void_p] * 3
    library.forebay_read.restype = ctypes.c_int64
    library.forebay_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
    library.forebay_multiply.restype = ctypes.c_int32
    library.forebay_multiply.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int32] * 3
    library.forebay_pack.restype = ctypes.c_int32
    library.forebay_pack.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int32] * 2 + [ctypes.c_void_p]
    library.forebay_quantize_int8.restype = ctypes.c_int32
    library.forebay_quantize_int8.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]
    library.forebay_quantize_int4.restype = ctypes.c_int32
    library.forebay_quantize_int4.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32),
        *(ctypes.c_void_p, ctypes.c_void_p),
    ]
    return library


def _file(variant: str, libraries: Path) -> Path:
    return libraries / f"forebay_{variant}.so"
