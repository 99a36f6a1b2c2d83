"""One option tried: its memory plan, whether it fits, and how many tokens its cache holds."""

from bisect import bisect_left
from dataclasses import dataclass

from forebay_operator.planner import memory as terms
from forebay_operator.planner.formats import NUMBER_BYTES
from forebay_operator.planner.kv_cache import KVCacheShape, kv_cache_shape, wanted_tokens
from forebay_operator.planner.options import Option
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planner.result import MemoryPlan

AUTO_BATCHED_TOKENS = {"cpu": (512, 256), "cuda": (8192, 2048, 1024), "rocm": (8192, 2048, 1024)}
"""`max_num_batched_tokens: auto` is the first that fits: many make prefill efficient, but CPU steps must stay short."""
AUTO_NUM_SEQS = {"cpu": 64, "cuda": 256, "rocm": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What comes out of one option with one size of step."""

    option: Option
    memory: MemoryPlan
    shape: KVCacheShape
    kv_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def guaranteed_sequences(self) -> int:
        """Sequences of the greatest length that always fit at once."""
        return min(self.kv_tokens // self.shape.sequence_tokens, self.max_num_seqs)

    @property
    def fits(self) -> bool:
        """Within memory, and at least one sequence of the greatest length fits the cache."""
        return self.memory.headroom >= 0 and self.kv_tokens >= self.shape.sequence_tokens


def try_option(request: PlanRequest, option: Option) -> Attempt:
    """Try an option with the largest step that fits; when none does, the attempt with the smallest step."""
    attempt = None
    for tokens in batched_tokens_choices(request):
        attempt = _attempt(request, option, tokens)
        if attempt.fits:
            break
    if attempt is None:
        raise ValueError("there is always one size of step")
    return attempt


def batched_tokens_choices(request: PlanRequest) -> tuple[int, ...]:
    """Sizes of a step that may be tried, largest first; never less than one token a sequence."""
    if request.max_num_batched_tokens != "auto":
        return (request.max_num_batched_tokens,)
    seqs = num_seqs(request)
    return tuple(dict.fromkeys(max(tokens, seqs) for tokens in AUTO_BATCHED_TOKENS[request.accelerator.device]))


def num_seqs(request: PlanRequest) -> int:
    """Sequences in one step at most: said, or what is usual for the device and at least what is promised."""
    if request.max_num_seqs != "auto":
        return request.max_num_seqs
    promised = request.kv_budget.amount if request.kv_budget.kind == "sequences" else 1
    usual = max(AUTO_NUM_SEQS[request.accelerator.device], promised)
    limit = request.max_num_batched_tokens
    return usual if limit == "auto" else min(usual, max(limit, 1))


def _attempt(request: PlanRequest, option: Option, batched_tokens: int) -> Attempt:
    facts, accelerator = request.facts, request.accelerator
    seqs = num_seqs(request)
    shape = kv_cache_shape(
        facts,
        option.kv_format,
        tensor=option.tensor,
        pipeline=option.pipeline,
        max_model_len=request.model_len,
        max_num_batched_tokens=batched_tokens,
        block_size=request.block_size,
    )

    def plan_for(kv_tokens: int) -> MemoryPlan:
        return MemoryPlan(
            total=request.memory,
            weights=option.weight_bytes,
            kv_cache=shape.bytes_for(kv_tokens),
            activations=terms.activation_bytes(
                facts,
                accelerator,
                dtype_bytes=NUMBER_BYTES[option.dtype_format],
                tensor=option.tensor,
                max_num_batched_tokens=batched_tokens,
                max_model_len=request.model_len,
                kv_bytes_per_token=shape.full_bytes_per_token + shape.sliding_bytes_per_token,
                kv_tokens=kv_tokens,
            ),
            logits=terms.logits_bytes(facts, seqs),
            graphs=terms.graph_bytes(facts, accelerator, seqs, option.pipeline),
            runtime=terms.runtime_bytes(accelerator),
            communication=terms.communication_bytes(accelerator, option.num_ranks),
            margin=terms.margin_bytes(accelerator, request.memory),
        )

    free = plan_for(0).headroom
    tokens = wanted_tokens(request.kv_budget, shape, free, option.num_ranks)
    plan = plan_for(tokens)
    if request.kv_budget.kind == "percent" and plan.headroom < 0 <= free:
        # On a CPU the cache itself adds to the activations: the largest cache that leaves room for both.
        blocks = bisect_left(
            range(tokens // request.block_size),
            1,
            key=lambda n: plan_for(n * request.block_size + request.block_size).headroom < 0,
        )
        tokens = blocks * request.block_size
        plan = plan_for(tokens)
    return Attempt(
        option=option,
        memory=plan,
        shape=shape,
        kv_tokens=tokens,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched_tokens,
    )
