"""Steps: the optimizations in the order in which they are worth doing, and what each one assumes."""

from dataclasses import dataclass, replace
from typing import Final

from forebay_operator.roi.inputs import Inputs
from forebay_operator.roi.throughput import CONTIGUOUS_SHARE, DRAFT_COST, DRAFT_TOKENS, PAGED_SHARE, Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization:
    """One change, added to all those before it."""

    key: str
    name: str
    formats: tuple[str, ...] = ()
    """Number formats that it makes possible."""
    switch: str = ""
    """The field of Serving that it switches on."""
    plain: str
    """What it does, for who pays."""
    assumes: str
    source: str

    def apply(self, serving: Serving) -> Serving:
        """The same with this one switched on."""
        return replace(serving, **{self.switch: True}) if self.switch else serving


ROOFLINE: Final = "planner's roofline"
_DEFAULTS: Final = Inputs()

# Speculation can cost more than it gains, the other switches cannot: so it must stay the last.
OPTIMIZATIONS: Final = (
    Optimization(
        key="continuousBatching",
        name="Continuous batching",
        switch="batched",
        plain="Many requests share each pass over the model's weights instead of waiting for one another.",
        assumes=f"as many sequences at once as the cache holds, {CONTIGUOUS_SHARE:.0%} of it useful (range 20-38%) "
        "while each sequence reserves its greatest length; utilization rises to the target "
        f"({_DEFAULTS.target_utilization:g}% unless given), the rest is for peaks",
        source=f"{ROOFLINE}; cache share: Kwon et al., SOSP 2023",
    ),
    Optimization(
        key="flashAttention",
        name="Flash attention",
        switch="fused",
        plain="Attention keeps its intermediate scores on the chip instead of writing them to memory.",
        assumes="without it the scores of a prompt cross the memory four times; only prompts are counted, "
        "so long prompts gain most",
        source=f"{ROOFLINE}; Dao et al., NeurIPS 2022, algorithm 0",
    ),
    Optimization(
        key="fp8",
        name="FP8 weights",
        formats=("fp8",),
        plain="Weights in 8-bit floating point: half the memory to read, twice the arithmetic where it is native.",
        assumes="linear layers in FP8, cache in 16 bits; accuracy to be checked on your own tasks",
        source=ROOFLINE,
    ),
    Optimization(
        key="pagedKV",
        name="Paged KV cache",
        switch="paged",
        plain="Cache memory is handed out in small blocks as answers grow, so more requests fit at once.",
        assumes=f"{PAGED_SHARE:.0%} of the cache useful instead of {CONTIGUOUS_SHARE:.0%}",
        source=f"{ROOFLINE}; cache share: Kwon et al., SOSP 2023",
    ),
    Optimization(
        key="int8OrInt4",
        name="INT8 or 4-bit weights",
        formats=("int8", "int4"),
        plain="Smaller integers for the weights: less memory to read, or fewer GPUs for one copy of the model.",
        assumes="the cheaper of the two; 4-bit weights are converted back to multiply and can cost accuracy: "
        "check on your own tasks",
        source=ROOFLINE,
    ),
    Optimization(
        key="prefixCaching",
        name="Prefix caching",
        switch="prefix",
        plain="The part of a prompt that was seen before (system prompt, chat history) is not computed again.",
        assumes=f"{_DEFAULTS.prefix_hit:g}% of the prompt's tokens are found unless you say otherwise; 0-90% by "
        "kind of traffic",
        source=f"{ROOFLINE}; the share is a stated range, not a measurement",
    ),
    Optimization(
        key="speculation",
        name="Speculative decoding",
        switch="speculative",
        plain="A small draft guesses the next tokens and the model checks several in one pass.",
        assumes=f"{DRAFT_TOKENS} tokens drafted, each accepted with {_DEFAULTS.acceptance:g}% unless you say otherwise "
        f"(range 50-80%), each costs {DRAFT_COST:.0%} of a step; gains little where arithmetic is the limit",
        source=f"{ROOFLINE}; Leviathan et al., ICML 2023, equation 1; acceptance is a stated range",
    ),
)
