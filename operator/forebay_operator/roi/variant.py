"""Variants: what the planner says of one model on one accelerator in one format, as the few numbers that time needs."""

from dataclasses import dataclass, replace
from typing import Final

from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner import KVBudget, PlanRequest
from forebay_operator.planner.attempt import Attempt
from forebay_operator.planner.formats import NUMBER_BYTES, UNQUANTIZED
from forebay_operator.planner.options import powers_of_two
from forebay_operator.planner.request import WeightFormat
from forebay_operator.planner.roofline import collective_us, reached_bytes_per_second, reached_flops, touched
from forebay_operator.planner.search import feasible

SCORE_PASSES: Final = 4
"""Attention that is not fused writes the scores, reads them for the softmax, writes the result and reads it again."""

FORMATS: Final[tuple[WeightFormat, ...]] = ("bf16", "fp8", "int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One replica: how many GPUs, in which format, and the constants of its roofline.

    Bytes and operations are of one rank where the name does not say otherwise; speeds are what is reached, not peaks.
    """

    format: str
    """Numbers of the linear layers, as plans write them."""
    gpus: int
    tensor: int
    pipeline: int
    weight_bytes: int
    touched: tuple[tuple[float, float], ...]
    """Parts of the weights: (share of all, probability that one token leaves it unread)."""
    kv_bytes_per_token: int
    """Layers that keep every token."""
    sliding_bytes_per_token: int
    """Layers that keep only the last `window` tokens."""
    window: int
    kv_tokens: int
    """Tokens that the cache of a replica holds."""
    max_num_seqs: int
    active_parameters: int
    """Of the whole model: what one token is multiplied with."""
    attention_flops: int
    """Of the whole model: operations of attention for each pair of tokens of a prompt."""
    score_bytes: float
    """Bytes that unfused attention moves for each pair of tokens of a prompt."""
    bytes_per_second: float
    flops_per_second: float
    collective_us: float
    """Latency of a step's all-reduces."""
    collective_us_per_token: float


def variants(facts: ModelFacts, accelerator: AcceleratorProfile, model_len: int) -> tuple[Variant, ...]:
    """Every format and tensor parallelism that fits, the most precise first; empty when nothing does.

    Args:
        facts: the model.
        accelerator: anything but `cpu`.
        model_len: longest prompt and answer together that must fit, in tokens.
    """
    base = PlanRequest(
        facts=facts, accelerator=accelerator, kv_budget=KVBudget("percent", 100), max_model_len=model_len
    )
    requests = [base]
    if facts.checkpoint.format in UNQUANTIZED:  # GGUF files, too: any format can be made of them
        requests = [replace(base, weights=number_format) for number_format in FORMATS]
    found = [
        _variant(request, attempt)
        for request in requests
        for tensor in powers_of_two(request.node_gpus)
        if (attempt := feasible(replace(request, tensor=tensor))) is not None
    ]
    return tuple(found)


def _variant(request: PlanRequest, attempt: Attempt) -> Variant:
    """The constants of one attempt; the same formulas as in the planner's estimate."""
    facts, option, accelerator = request.facts, attempt.option, request.accelerator
    of_step, of_token = collective_us(facts, accelerator, option)
    number_bytes = NUMBER_BYTES[option.dtype_format]
    return Variant(
        format=option.formats.scheme.format,
        gpus=option.num_ranks,
        tensor=option.tensor,
        pipeline=option.pipeline,
        weight_bytes=option.weight_bytes,
        touched=touched(facts),
        kv_bytes_per_token=attempt.shape.full_bytes_per_token,
        sliding_bytes_per_token=attempt.shape.sliding_bytes_per_token,
        window=attempt.shape.window,
        kv_tokens=attempt.kv_tokens,
        max_num_seqs=attempt.max_num_seqs,
        active_parameters=facts.num_active_parameters,
        attention_flops=2 * facts.num_layers * facts.num_heads * facts.head_dim,
        score_bytes=SCORE_PASSES * facts.num_layers * facts.num_heads * number_bytes / option.tensor,
        bytes_per_second=reached_bytes_per_second(accelerator),
        flops_per_second=reached_flops(accelerator, option),
        collective_us=of_step,
        collective_us_per_token=of_token,
    )
