"""Kernels run in Triton's interpreter here, as in `test_kernels`; there is no GPU."""

from tests.test_kernels import conftest  # noqa: F401  chooses the interpreter before triton is imported
