"""Options: every pair of formats and every way to cut the model that a request allows, best first."""

from dataclasses import dataclass
from typing import Final

from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner.formats import (
    DTYPE_FORMATS,
    NUMBER_BYTES,
    UNQUANTIZED,
    WeightScheme,
    checkpoint_name,
    checkpoint_precision,
    checkpoint_scheme,
    is_quantized,
    load_time_scheme,
)
from forebay_operator.planner.request import PRECISION, PlanRequest
from forebay_operator.planner.result import EngineQuantization, Rejected
from forebay_operator.planner.weights import split_problem, weight_bytes_per_rank

LADDER: Final = ("bf16", "fp8", "int8", "int4")
"""Formats that `auto` goes down; float32 stands before them for a checkpoint that has it."""


KEPT_ON_CPUS: Final = ("int8", "int4")
COMPILED_ARCHITECTURES: Final = ("llama", "mistral", "qwen2", "qwen3")
"""Those that the engine's compiled step for CPUs knows."""


@dataclass(frozen=True, slots=True)
class Formats:
    """One pair of formats that may be tried."""

    scheme: WeightScheme
    kv_format: str
    dtype_format: str
    """Arithmetic, and every tensor that is not quantized."""

    @property
    def engine_quantization(self) -> EngineQuantization:
        """The engine's `--quantization`: what it converts to, `none` for plain numbers, `auto` to keep the files'."""
        if self.scheme.from_checkpoint:
            return "auto"
        return "none" if self.scheme.format in UNQUANTIZED else self.scheme.format  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Option:
    """Formats and a way to cut the model, with the weights that one rank then holds."""

    formats: Formats
    tensor: int
    pipeline: int
    weight_bytes: int

    @property
    def kv_format(self) -> str:
        """Format of the cache."""
        return self.formats.kv_format

    @property
    def dtype_format(self) -> str:
        """Format of the arithmetic."""
        return self.formats.dtype_format

    @property
    def num_ranks(self) -> int:
        """Accelerators of a replica."""
        return self.tensor * self.pipeline

    @property
    def name(self) -> str:
        """`fp8 weights, bf16 KV, TP 4`."""
        stages = f", PP {self.pipeline}" if self.pipeline > 1 else ""
        return f"{self.formats.scheme.name} weights, {self.kv_format} KV, TP {self.tensor}{stages}"


@dataclass(frozen=True, slots=True)
class Impossible:
    """A wish that no memory could fulfil.

    Args:
        reason: as `Refusal.reason`.
        message: one line with the numbers.
    """

    reason: str
    message: str


def sixteen_bit_format(request: PlanRequest) -> str:
    """bf16 or fp16: what the checkpoint has, where the hardware multiplies it, else what the hardware does."""
    own = DTYPE_FORMATS[request.facts.dtype]
    if own != "float32" and request.accelerator.support(own) == "native":
        return own
    return request.accelerator.dtype_format


def allowed_formats(request: PlanRequest) -> tuple[list[Formats], list[Rejected], Impossible | None]:
    """Formats in the order in which they are preferred (most precise first), those ruled out, or why there is none."""
    schemes, rejected, impossible = _weight_schemes(request)
    if impossible is not None:
        return [], rejected, impossible
    kv_format, impossible = _kv_format(request)
    if impossible is not None:
        return [], rejected, impossible
    sixteen = sixteen_bit_format(request)
    pairs = []
    for scheme in schemes:
        dtype_format = scheme.format if scheme.format in UNQUANTIZED else sixteen
        pairs.append(Formats(scheme, dtype_format if kv_format == "dtype" else kv_format, dtype_format))
    return pairs, rejected, None


def _weight_schemes(request: PlanRequest) -> tuple[list[WeightScheme], list[Rejected], Impossible | None]:
    """Formats of weights that may be tried."""
    checkpoint = request.facts.checkpoint
    if is_quantized(checkpoint):
        if request.floor and checkpoint_precision(checkpoint) < PRECISION[request.floor]:
            problem = f"the checkpoint is {checkpoint_name(checkpoint)}, below the floor {request.floor}"
            return [], [], Impossible("BelowFloor", problem)
        scheme = checkpoint_scheme(checkpoint)
        if _is_kept(request, scheme):
            return [scheme], [], _checkpoint_problem(request, scheme)
    is_cpu = request.accelerator.device == "cpu"
    floor = PRECISION[request.floor] if request.floor else 0
    if request.weights != "auto":
        number_format = _on_hardware(request, request.weights)
        if PRECISION[number_format] < floor:
            return [], [], Impossible("BelowFloor", f"weights: {request.weights} is below the floor {request.floor}")
        if request.accelerator.support(number_format) == "none":
            return (
                [],
                [],
                Impossible(
                    "QuantizationNotSupported", _unsupported(request, f"weights: {request.weights}", number_format)
                ),
            )
        return [load_time_scheme(number_format, checkpoint, is_cpu=is_cpu)], [], None
    schemes, rejected = [], []
    for rung in _ladder(request):
        number_format = _on_hardware(request, rung)
        support = request.accelerator.support(number_format)
        if PRECISION[rung] < floor:
            rejected.append(Rejected(f"{rung} weights", f"below the floor {request.floor}"))
        elif support == "none":
            rejected.append(Rejected(f"{rung} weights", f"{request.accelerator.name} cannot serve them"))
        elif support == "dequantized" and rung == "fp8":
            reason = (
                f"not native on {request.accelerator.name}: would be dequantized to multiply; weights: fp8 asks for it"
            )
            rejected.append(Rejected("fp8 weights", reason))
        else:
            schemes.append(load_time_scheme(number_format, checkpoint, is_cpu=is_cpu))
    if not schemes:
        wanted = ", ".join(request.allowed) + (f" with floor {request.floor}" if request.floor else "")
        return (
            [],
            rejected,
            Impossible(
                "QuantizationNotSupported",
                f"{request.accelerator.name} can serve none of the allowed formats: {wanted}",
            ),
        )
    return schemes, rejected, None


def _ladder(request: PlanRequest) -> list[str]:
    """Allowed rungs, highest first; bf16 stands for 16 bits of either kind."""
    rungs = []
    if "float32" in request.allowed and request.facts.dtype == "float32":
        rungs.append("float32")
    for rung in LADDER:
        if rung in request.allowed or (rung == "bf16" and "fp16" in request.allowed):
            rungs.append(rung)
    if not rungs:  # only float32 is allowed
        rungs.append("float32")
    return rungs


def _on_hardware(request: PlanRequest, number_format: str) -> str:
    """16-bit formats as the hardware and the checkpoint have them; an explicit one that is supported stays."""
    if number_format not in ("bf16", "fp16"):
        return number_format
    if request.weights == number_format and request.accelerator.support(number_format) != "none":
        return number_format
    return sixteen_bit_format(request)


def _is_kept(request: PlanRequest, scheme: WeightScheme) -> bool:
    """Whether a quantized checkpoint is served as it is: what the engine does not keep it converts while loading.

    On CPUs it keeps what its compiled step multiplies, for models that this step knows; elsewhere every format. Of GGUF
    files and on CPUs it can make any other format, when one is asked for.
    """
    is_cpu = request.accelerator.device == "cpu"
    if (is_cpu or scheme.format == "gguf") and request.weights not in ("auto", scheme.format):
        return False
    return not is_cpu or (scheme.support_name in KEPT_ON_CPUS and _is_compiled(request.facts))


def _is_compiled(facts: ModelFacts) -> bool:
    return facts.architecture in COMPILED_ARCHITECTURES and facts.hidden_size % 16 == facts.head_dim % 16 == 0


def _checkpoint_problem(request: PlanRequest, scheme: WeightScheme) -> Impossible | None:
    """Why a checkpoint that is already quantized cannot be served as wished."""
    if request.weights not in ("auto", scheme.format, scheme.support_name):
        return Impossible(
            "QuantizationNotSupported",
            f"the checkpoint is already {scheme.format} and keeps its format; weights: {request.weights} needs one "
            "that is not quantized",
        )
    if request.accelerator.support(scheme.support_name) == "none":
        return Impossible(
            "QuantizationNotSupported", _unsupported(request, f"the checkpoint's {scheme.format}", scheme.support_name)
        )
    return None


def _kv_format(request: PlanRequest) -> tuple[str, Impossible | None]:
    """Format of the cache; `dtype` stands for the format of the arithmetic.

    `auto` never goes to 8 bits by itself: without calibrated scales that costs accuracy in long contexts.
    """
    accelerator = request.accelerator
    if request.kv_cache_dtype != "auto":
        kv_format = _kv_on_hardware(request, request.kv_cache_dtype)
        if accelerator.support(kv_format) == "none":
            return "", Impossible("QuantizationNotSupported", _unsupported(request, f"kvCache: {kv_format}", kv_format))
        return kv_format, None
    calibrated = request.facts.checkpoint.kv_cache_dtype
    if calibrated and accelerator.support(calibrated) != "none":
        return calibrated, None
    return "dtype", None


def _kv_on_hardware(request: PlanRequest, kv_format: str) -> str:
    if kv_format in ("bf16", "fp16") and request.accelerator.support(kv_format) == "none":
        return sixteen_bit_format(request)
    return kv_format


def _unsupported(request: PlanRequest, what: str, number_format: str) -> str:
    names = ", ".join((*request.accelerator.native, *request.accelerator.dequantized))
    return f"{what}: {request.accelerator.name} neither multiplies nor stores {number_format}; it has: {names}"


def cuts(request: PlanRequest) -> tuple[list[tuple[int, int]], Impossible | None]:
    """Pairs (tensor, pipeline) in the order in which they are preferred: fewest accelerators, no pipeline first."""
    node, nodes = request.node_gpus, request.max_nodes
    if request.tensor != "auto" and request.tensor > node:
        return [], Impossible(
            "TooFewGPUs",
            f"tensor parallel size {request.tensor} needs {request.tensor} GPUs of one node, a node has {node}",
        )
    pipelines = [request.pipeline] if request.pipeline != "auto" else [1, *range(2, nodes + 1)]
    pairs = []
    for pipeline in pipelines:
        if request.pipeline != "auto" and pipeline > request.facts.num_layers:
            return [], Impossible(
                "PipelineParallelism", f"{request.facts.num_layers} layers cannot be {pipeline} stages"
            )
        for tensor in [request.tensor] if request.tensor != "auto" else powers_of_two(node):
            spans_nodes = request.pipeline == "auto" and pipeline > 1
            if spans_nodes and request.tensor == "auto" and tensor * 2 <= node:
                continue  # more than one node only with all that one has
            if tensor * pipeline <= node * nodes:
                pairs.append((tensor, pipeline))
    if not pairs:
        return [], Impossible(
            "TooFewGPUs",
            f"pipeline parallel size {request.pipeline} needs as many GPUs at least, there are {node * nodes}",
        )
    return pairs, None


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4 ... up to the limit."""
    return [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]


def option_of(facts: ModelFacts, formats: Formats, tensor: int, pipeline: int) -> Option | str:
    """One option with its weights, or why the model cannot be cut so."""
    problem = split_problem(facts, formats.scheme, tensor)
    if problem is not None:
        return problem
    plain = NUMBER_BYTES[formats.dtype_format]
    return Option(formats, tensor, pipeline, weight_bytes_per_rank(facts, formats.scheme, plain, tensor, pipeline))
