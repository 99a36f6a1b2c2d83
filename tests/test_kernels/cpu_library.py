"""Which variants of the C++ library the tests run."""

import pytest

from forebay_kernels.cpu.library import VARIANTS, cpu_flags, usable_variants


def variants() -> list[str]:
    """Those that were built and that this CPU can run; the tests fail where it could run one and none was built."""
    flags = cpu_flags()
    if not VARIANTS["avx2"] <= flags:
        pytest.skip("this CPU has no AVX2", allow_module_level=True)
    found = usable_variants(flags)
    if not found:
        pytest.fail("the C++ library was not built; `make setup` does it where there is a compiler", pytrace=False)
    return found
