"""Finds and loads the C++ library: one file for each instruction set, of which the best that this CPU has is taken."""

import ctypes
import logging
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

logger = logging.getLogger(__name__)

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}

VARIANTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_int8"},
        "avx512bf16": _AVX512 | {"avx512_bf16"},
        "avx512vnni": _AVX512,
        "avxvnni": _AVX2 | {"avx_vnni"},
        "avx2": _AVX2,
    }
)
"""The flags of /proc/cpuinfo that each variant needs, the best variant first."""

LIBRARIES = Path(__file__).parent / "libraries"
"""Where the build leaves `forebay_<variant>.so`."""

_REFUSALS = {1: "the system does not let this process use AMX", 2: "AMX computes other numbers on this machine"}
"""What `Readiness` of `source/amx_check.h` means."""


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
    """The variant for this CPU; None where the library was not built or the CPU has no AVX2.

    One that cannot be loaded after all is left out, and the log says why.
    """
    for variant in usable_variants(cpu_flags(), LIBRARIES):
        try:
            load_library(variant)
        except OSError as error:
            logger.warning("the C++ library for %s is not used: %s", variant, error)
        else:
            return variant
    return None


@cache
def load_library(variant: str) -> ctypes.CDLL:
    """Load a variant, and let it prepare this process.

    Args:
        variant: one of `usable_variants`; another may end the process with an illegal instruction.

    Raises:
        OSError: there is no such file, it cannot be loaded, or it must not be used on this machine.
    """
    library = ctypes.CDLL(str(_file(variant, LIBRARIES)))
    refusal = library.forebay_prepare()
    if refusal:
        raise OSError(_REFUSALS[refusal])
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
