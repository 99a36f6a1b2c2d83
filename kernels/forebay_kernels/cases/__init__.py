"""One call of each kernel to measure, with its least work: `case_maker` finds it by the kernel's name."""

from importlib import import_module

from forebay_kernels.cases.case import Case, CaseMaker

__all__ = ["Case", "CaseMaker", "case_maker"]


def case_maker(kernel: str) -> CaseMaker:
    """The function that makes the cases of a kernel.

    Raises:
        ModuleNotFoundError: there is no kernel of that name.
    """
    maker: CaseMaker = import_module(f"forebay_kernels.cases.{kernel}").make_case
    return maker
