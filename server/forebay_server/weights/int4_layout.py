"""What the methods that store four bits share: the groups that our form has for theirs, and zeros that say nothing."""

from dataclasses import replace

from forebay_kernels.int4_weights import Int4Weight, group_of
from forebay_server.weights.layer_format import LayoutError

FLOATS = ("F16", "BF16", "F32")
USUAL_ZERO = 8


def grouped(group_size: int, part: str) -> int:
    """The group that our form has for a stored group.

    Raises:
        LayoutError: there is none.
    """
    try:
        return group_of(group_size)
    except ValueError:
        raise LayoutError(part, f"has groups of {group_size}; whole multiples of 32 are supported") from None


def without_usual_zeros(weight: Int4Weight) -> Int4Weight:
    """The same weight without zeros where all are 8, which is what no zeros mean."""
    if weight.zeros is not None and bool((weight.zeros == USUAL_ZERO).all()):
        return replace(weight, zeros=None)
    return weight
