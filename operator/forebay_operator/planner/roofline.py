"""The roofline's constants of one model on one accelerator: what estimates, `forebay roi` and its page calculate with.

Roofline: Williams, Waterman, Patterson, CACM 52(4), 2009.
"""

from functools import cache
from typing import Final

from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner.formats import EMBEDDING, NUMBER_BYTES
from forebay_operator.planner.options import Option

BANDWIDTH_PERCENT: Final = 70
"""Share of the data sheet's bandwidth that decode reaches."""
FLOPS_PERCENT: Final = 50
"""Share of the data sheet's peak that large matrix products reach."""
STEP_OVERHEAD_US: Final = 500
"""Scheduling, launches and sampling of a step."""
ALL_REDUCE_US: Final = 12
"""Latency of one small all-reduce over a fast link; without one it is three times that."""


def reached_bytes_per_second(accelerator: AcceleratorProfile) -> float:
    """Bandwidth that decode reaches."""
    return accelerator.bandwidth_bytes_per_second * BANDWIDTH_PERCENT / 100


def reached_flops(accelerator: AcceleratorProfile, option: Option) -> float:
    """Operations a second that are reached, in the format that is multiplied.

    That is 16 bits where weights are only stored smaller.
    """
    scheme, peaks = option.formats.scheme, accelerator.peak_flops
    number_format = scheme.support_name
    if scheme.bits == 4 and accelerator.support(number_format) == "native":
        number_format = "fp4"
    peak = peaks.get(number_format) or peaks.get(option.dtype_format) or max(peaks.values())
    return peak * FLOPS_PERCENT / 100


def collective_us(facts: ModelFacts, accelerator: AcceleratorProfile, option: Option) -> tuple[float, float]:
    """Two all-reduces a layer of the hidden states: microseconds of a step, and for each of its tokens."""
    if option.tensor == 1:
        return 0.0, 0.0
    slow = 1 if option.tensor <= accelerator.link_domain else 3
    state_bytes = 2 * facts.hidden_size * NUMBER_BYTES[option.dtype_format]
    per_token = 2 * facts.num_layers * state_bytes / accelerator.link_bytes_per_second * 1e6
    return 2 * facts.num_layers * ALL_REDUCE_US * slow, per_token


@cache
def touched(facts: ModelFacts) -> tuple[tuple[float, float], ...]:
    """Parts of the weights: (share of all, probability that one token leaves it unread, as it does most experts)."""
    shares: dict[float, int] = {}
    for group in facts.tensors:
        miss = 0.0
        if group.name == EMBEDDING and not facts.tied_embeddings:
            miss = 1.0  # looked up, a row a token
        elif group.active is not None and group.copies:
            miss = 1 - group.active / group.copies
        shares[miss] = shares.get(miss, 0) + group.parameters
    total = sum(shares.values())
    return tuple((parameters / total, miss) for miss, parameters in sorted(shares.items()))


def share_read(facts: ModelFacts, tokens: int) -> float:
    """Share of the weights that a step of so many tokens reads."""
    return sum(share * (1 - miss**tokens) for share, miss in touched(facts))
