"""PlanRequest: what the planner is asked, checked for sense when it is made."""

from dataclasses import dataclass
from typing import Literal, get_args

from forebay_operator.catalogue.accelerator_profile import AcceleratorProfile
from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner.errors import RequestError

WeightFormat = Literal["float32", "bf16", "fp16", "fp8", "int8", "int4"]
"""Numbers of the linear layers' weights. bf16 and fp16 are one step: which of them, the hardware decides."""

KVFormat = Literal["float32", "bf16", "fp16", "fp8", "int8"]

PRECISION: dict[str, int] = {"float32": 4, "bf16": 3, "fp16": 3, "fp8": 2, "int8": 1, "int4": 0}
"""Steps of the ladder that `auto` goes down, highest first; a floor is compared by these."""

BudgetKind = Literal["sequences", "tokens", "bytes", "percent"]


@dataclass(frozen=True, slots=True)
class KVBudget:
    """How much cache is promised, in exactly one of four ways."""

    kind: BudgetKind
    """sequences: of max_model_len tokens each, at once. tokens: in all. bytes: over all GPUs of a replica.
    percent: of the memory that is left when weights and everything else are counted."""
    amount: int

    def __post_init__(self) -> None:
        if self.kind not in get_args(BudgetKind):
            raise RequestError("kvBudget", f"unknown kind {self.kind!r}; one of {', '.join(get_args(BudgetKind))}")
        if self.amount < 1:
            raise RequestError("kvBudget", f"{self.kind} must be at least 1, not {self.amount}")
        if self.kind == "percent" and self.amount > 100:
            raise RequestError("kvBudget", f"percent must be at most 100, not {self.amount}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Everything a plan depends on. Sizes in tokens unless the name says otherwise."""

    facts: ModelFacts
    accelerator: AcceleratorProfile
    kv_budget: KVBudget
    gpus_per_node: int | None = None
    """None: what the profile says."""
    max_nodes: int = 1
    """Nodes that one replica may span; more than one only where pipeline parallelism over nodes is possible."""
    tensor: int | Literal["auto"] = "auto"
    pipeline: int | Literal["auto"] = "auto"
    weights: WeightFormat | Literal["auto"] = "auto"
    allowed: tuple[WeightFormat, ...] = ("bf16", "fp8", "int8")
    """Formats that `auto` may choose from; int4 only when listed. An explicit `weights` needs no permission."""
    floor: WeightFormat | None = None
    """Never below this precision; None: what `allowed` says."""
    kv_cache_dtype: KVFormat | Literal["auto"] = "auto"
    max_model_len: int | None = None
    """Longest prompt and answer together; None: what the model was made for."""
    max_num_seqs: int | Literal["auto"] = "auto"
    max_num_batched_tokens: int | Literal["auto"] = "auto"
    memory_bytes: int | None = None
    """Budget of one accelerator; needed for `cpu`, otherwise None: what the profile says."""
    block_size: int = 16
    """Tokens in one block of the KV cache."""

    def __post_init__(self) -> None:
        for key in ("gpus_per_node", "max_nodes", "tensor", "pipeline", "max_model_len", "max_num_seqs",
                    "max_num_batched_tokens", "memory_bytes", "block_size"):  # fmt: skip
            value = getattr(self, key)
            if isinstance(value, int) and value < 1:
                raise RequestError(key, f"must be at least 1, not {value}")
        for number_format in (*self.allowed, *([] if self.weights == "auto" else [self.weights])):
            if number_format not in PRECISION:
                raise RequestError("quantization", f"unknown format {number_format!r}; one of {', '.join(PRECISION)}")
        if self.memory_bytes is None and self.accelerator.memory_bytes == 0:
            raise RequestError("accelerator.memory", f"needed with profile {self.accelerator.name}, for instance 8Gi")

    @property
    def memory(self) -> int:
        """Bytes that one rank may use."""
        return self.accelerator.memory_bytes if self.memory_bytes is None else self.memory_bytes

    @property
    def node_gpus(self) -> int:
        """GPUs of one node."""
        return self.accelerator.gpus_per_node if self.gpus_per_node is None else self.gpus_per_node

    @property
    def model_len(self) -> int:
        """Longest prompt and answer together."""
        return self.facts.max_positions if self.max_model_len is None else self.max_model_len
