"""Which variants of the C++ library the tests run."""

import pytest

from forebay_kernels.cpu.library import VARIANTS, cpu_flags, load_library, usable_variants

EMULATED = "amx_emulated"
"""The library for AMX with its instructions in plain C++ (`source/amx_emulation.h`); the rest of it needs AVX-512."""


def variants() -> list[str]:
    """Those that were built and that this CPU can run, the best first, `EMULATED` last.

    The tests fail where it could run one and none was built.
    """
    flags = cpu_flags()
    if not VARIANTS["avx2"] <= flags:
        pytest.skip("this CPU has no AVX2", allow_module_level=True)
    found = [variant for variant in usable_variants(flags) if _loads(variant)]
    if not found:
        pytest.fail("the C++ library was not built; `make setup` does it where there is a compiler", pytrace=False)
    return [*found, EMULATED] if can_emulate() else found


def can_emulate() -> bool:
    """Whether this CPU can run `EMULATED`, which is built with the others."""
    return VARIANTS["avx512vnni"] <= cpu_flags()


def _loads(variant: str) -> bool:
    """False where the system does not allow what the CPU could do."""
    try:
        load_library(variant)
    except OSError:
        return False
    return True
