"""Plan and Refusal: what the planner answers, and how it stands in status (integers and strings only)."""

from dataclasses import dataclass
from typing import Any, Literal

from forebay_operator.facts.model_facts import Dtype

MAX_LINES = 32
"""Entries of `explanation`, `rejected` and `suggestions` at most; the custom resource bounds its lists by it."""
MAX_LINE_CHARS = 512


EngineQuantization = Literal["auto", "none", "fp8", "int8", "int4"]
"""What the engine does with weights while loading: keep a quantized checkpoint's format, convert to plain numbers, or
quantize."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An alternative and why it lost."""

    option: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes on the fullest rank. All terms but `kv_cache` are the same for every KV budget."""

    total: int
    """What one accelerator has, or the budget of a `cpu` pod."""
    weights: int
    kv_cache: int
    activations: int
    """Highest point of one step with `maxNumBatchedTokens` tokens."""
    logits: int
    """Scores of `maxNumSeqs` rows, in the forms that sampling keeps at once."""
    graphs: int
    """Captured CUDA graphs."""
    runtime: int
    """Context, libraries and interpreter."""
    communication: int
    """Buffers of the collectives."""
    margin: int
    """Kept free for fragmentation."""

    @property
    def used(self) -> int:
        """Sum of all terms."""
        return self.fixed + self.kv_cache

    @property
    def fixed(self) -> int:
        """Sum of all terms but the KV cache."""
        return (
            self.weights
            + self.activations
            + self.logits
            + self.graphs
            + self.runtime
            + self.communication
            + self.margin
        )

    @property
    def headroom(self) -> int:
        """What is left over; negative when it does not fit."""
        return self.total - self.used

    def to_status(self) -> dict[str, int]:
        """The terms by name, in bytes."""
        return {
            "totalBytes": self.total,
            "weightsBytes": self.weights,
            "kvCacheBytes": self.kv_cache,
            "activationsBytes": self.activations,
            "logitsBytes": self.logits,
            "graphsBytes": self.graphs,
            "runtimeBytes": self.runtime,
            "communicationBytes": self.communication,
            "marginBytes": self.margin,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the roofline says of speed and cost; whole numbers in the units that the names carry."""

    batch: int
    prompt_tokens: int
    output_tokens: int
    time_to_first_token_ms: int
    inter_token_latency_us: int
    output_tokens_per_second: int
    cost_per_million_tokens_cents: tuple[int, int]
    """At the profile's lowest and highest price; (0, 0) when there is none."""
    naive_output_tokens_per_second: int
    naive_cost_per_million_tokens_cents: tuple[int, int]
    assumptions: str

    def to_status(self) -> dict[str, int | str]:
        """The numbers by name."""
        return {
            "batch": self.batch,
            "promptTokens": self.prompt_tokens,
            "outputTokens": self.output_tokens,
            "timeToFirstTokenMilliseconds": self.time_to_first_token_ms,
            "interTokenLatencyMicroseconds": self.inter_token_latency_us,
            "outputTokensPerSecond": self.output_tokens_per_second,
            "costPerMillionTokensUSD": _dollars(self.cost_per_million_tokens_cents),
            "naiveOutputTokensPerSecond": self.naive_output_tokens_per_second,
            "naiveCostPerMillionTokensUSD": _dollars(self.naive_cost_per_million_tokens_cents),
            "assumptions": self.assumptions,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan that fits. Everything the engine's command line needs stands in it."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    weights: str
    """Format of the linear layers: float32, bf16, fp16, fp8, int8, int4, or the checkpoint's own (gptq, awq, ...)."""
    dtype: Dtype
    """The engine's `--dtype`: arithmetic, and every tensor that is not quantized."""
    quantization: EngineQuantization
    """The engine's `--quantization`."""
    weight_bytes_per_gpu: int
    kv_cache_dtype: str
    """Format of the cache, as `weights` writes formats."""
    engine_kv_cache_dtype: str
    """The engine's `--kv-cache-dtype`."""
    kv_bytes_per_token: int
    """Of the whole model, all ranks together, replicas not counted."""
    kv_bytes_per_token_per_gpu: int
    kv_cache_tokens: int
    """The engine's `--kv-cache-tokens`: a whole number of blocks."""
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    guaranteed_sequences: int
    """So many sequences of `guaranteed_length` tokens always fit at once."""
    guaranteed_length: int
    memory: MemoryPlan
    estimate: Estimate
    explanation: tuple[str, ...]
    rejected: tuple[Rejected, ...]

    @property
    def num_gpus(self) -> int:
        """Accelerators of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def to_status(self) -> dict[str, Any]:
        """The object that stands in `status.plan`."""
        return {
            "tensorParallelSize": self.tensor_parallel_size,
            "pipelineParallelSize": self.pipeline_parallel_size,
            "weights": self.weights,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "weightBytesPerGPU": self.weight_bytes_per_gpu,
            "kvCacheDtype": self.kv_cache_dtype,
            "kvBytesPerToken": self.kv_bytes_per_token,
            "kvBytesPerTokenPerGPU": self.kv_bytes_per_token_per_gpu,
            "kvCacheTokens": self.kv_cache_tokens,
            "numBlocks": self.num_blocks,
            "blockSize": self.block_size,
            "maxModelLen": self.max_model_len,
            "maxNumSeqs": self.max_num_seqs,
            "maxNumBatchedTokens": self.max_num_batched_tokens,
            "guaranteed": {"sequences": self.guaranteed_sequences, "length": self.guaranteed_length},
            "memory": self.memory.to_status(),
            "headroomBytes": self.memory.headroom,
            "estimate": self.estimate.to_status(),
            "explanation": _lines(self.explanation),
            "rejected": _rejected(self.rejected),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Nothing that was allowed fits, or the wish is impossible."""

    reason: str
    """CamelCase, stable: DoesNotFit, TensorParallelism, PipelineParallelism, QuantizationNotSupported, BelowFloor,
    ContextTooLong, KVBudgetTooSmall, TooFewGPUs."""
    message: str
    """One line with the numbers; goes into the condition PlanFeasible."""
    need_bytes: int = 0
    """On the fullest rank of the best attempt; 0 when memory is not the trouble."""
    have_bytes: int = 0
    suggestions: tuple[str, ...] = ()
    """Changes that make it fit, smallest first, each as `field: value` with its effect."""
    explanation: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    def to_status(self) -> dict[str, Any]:
        """The refusal as an object; `forebay plan -o json` prints it."""
        return {
            "reason": self.reason,
            "message": self.message,
            "needBytes": self.need_bytes,
            "haveBytes": self.have_bytes,
            "suggestions": _lines(self.suggestions),
            "explanation": _lines(self.explanation),
            "rejected": _rejected(self.rejected),
        }


def _lines(lines: tuple[str, ...]) -> list[str]:
    return [line[:MAX_LINE_CHARS] for line in lines[:MAX_LINES]]


def _rejected(entries: tuple[Rejected, ...]) -> list[dict[str, str]]:
    return [{"option": e.option[:MAX_LINE_CHARS], "reason": e.reason[:MAX_LINE_CHARS]} for e in entries[:MAX_LINES]]


def _dollars(cents: tuple[int, int]) -> str:
    """`0.42-1.10`, or an empty string when no price is known."""
    low, high = cents
    return f"{low // 100}.{low % 100:02d}-{high // 100}.{high % 100:02d}" if high else ""
