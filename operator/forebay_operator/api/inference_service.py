"""The spec of an InferenceService: what a user may ask for. Types and rules only; nothing is worked out here."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator

from forebay_operator.api.common import (
    Annotations,
    ApiModel,
    Duration,
    Labels,
    Message,
    Name,
    Quantity,
    Toleration,
    cel_text,
    quantity_value,
    rule,
    rules,
)
from forebay_operator.planner.request import PRECISION

PLANNED_FLAGS = (
    "--model",
    "--served-model-name",
    "--revision",
    "--device",
    "--dtype",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--quantization",
    "--kv-cache-dtype",
    "--kv-cache-tokens",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--block-size",
    "--api-key-file",
    "--host",
    "--port",
    "--ops-port",
    "--plan-file",
    "--drain-timeout",
)
"""Flags of `forebay serve` that come from the spec or the plan; `engine.extraArgs` may not repeat them."""

TENSOR_SIZES = (1, 2, 4, 8, 16)

_TENSOR_RULE = rule(
    "type(self) == string ? self == 'auto' : self in [1, 2, 4, 8, 16]",
    "tensor must be auto or a power of two up to 16",
)

TensorParallel = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=16)],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 4, **_TENSOR_RULE}),
]

_PIPELINE_RULE = rule(
    "type(self) == string ? self == 'auto' : self >= 1 && self <= 16",
    "pipeline must be auto or a number from 1 to 16",
)

PipelineParallel = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=16)],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 4, **_PIPELINE_RULE}),
]

_URI_PATTERN = r"^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$"

_URI_MESSAGE = "model.uri must be pvc://CLAIM/PATH, a path on a volume claim in this namespace, for example pvc://models/llama.gguf"


def _is_uri(value: str) -> str:
    if re.match(_URI_PATTERN, value) is None:
        raise ValueError(_URI_MESSAGE)
    return value


ModelUri = Annotated[
    str,
    StringConstraints(max_length=512),
    AfterValidator(_is_uri),
    WithJsonSchema(
        {"type": "string", "maxLength": 512, **rule(f"self.matches({cel_text(_URI_PATTERN)})", _URI_MESSAGE)}
    ),
]

Precision = Literal["float32", "bf16", "fp16", "fp8", "int8", "int4"]

_STEPS_IN_CEL = "{" + ", ".join(f"'{name}': {step}" for name, step in PRECISION.items()) + "}"


class Model(ApiModel):
    """Which model, from where."""

    uri: ModelUri
    """`pvc://CLAIM/PATH`: a GGUF file, or a folder with config.json and safetensors, on a volume claim in this
    namespace. The volume is mounted read-only."""
    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)] | None = None
    """Names what lies at the address; a new revision is inspected anew and rolled out."""
    served_names: (
        Annotated[
            list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", max_length=128)]],
            Field(min_length=1, max_length=8),
        ]
        | None
    ) = None
    """Names that clients send as `model`; the first is reported. Absent: the name of the service."""


class Accelerator(ApiModel):
    """What the pods run on."""

    profile: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]
    """An AcceleratorProfile, or one of the built-in names: `cpu`, `h100-80gb`, `l4`..."""
    memory: Quantity | None = None
    """Only with the profile `cpu`: memory request, limit and budget of the plan."""


class Parallelism(ApiModel):
    """How the model is split over accelerators."""

    tensor: TensorParallel = "auto"
    """Accelerators that share each layer; auto: the smallest number that fits."""
    pipeline: PipelineParallel = "auto"
    """Groups of layers, each on accelerators of its own; auto: 1, as long as pods do not span nodes."""


class Quantization(ApiModel):
    """Number formats; a checkpoint that is already quantized keeps its own."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": rule(
            "!has(self.floor) || self.weights == 'auto' || "
            f"{_STEPS_IN_CEL}[self.weights] >= {_STEPS_IN_CEL}[self.floor]",
            "weights must not be below floor",
            fieldPath=".weights",
        )
    }

    weights: Literal["auto", "float32", "bf16", "fp16", "fp8", "int8", "int4"] = "auto"
    """Format of the weights; auto: the most precise allowed one that meets the KV budget."""
    kv_cache: Literal["auto", "float32", "bf16", "fp16", "fp8", "int8"] = "auto"
    """Format of the KV cache; auto: the format of the activations."""
    allowed: Annotated[tuple[Precision, ...], Field(min_length=1, max_length=6)] = ("bf16", "fp8", "int8")
    """What auto may choose from; int4 only when listed."""
    floor: Precision | None = None
    """Nothing below this precision, neither what auto chooses nor what a checkpoint brings; bf16 and fp16 are one step.
    Absent: `allowed` alone bounds what auto chooses, and a quantized checkpoint is served as it is."""

    @model_validator(mode="after")
    def _not_below_floor(self) -> Self:
        if self.floor and self.weights != "auto" and PRECISION[self.weights] < PRECISION[self.floor]:
            raise ValueError(f"weights {self.weights} must not be below floor {self.floor}")
        return self


class Context(ApiModel):
    """Lengths of requests."""

    max_model_len: Annotated[int, Field(ge=16, le=16_777_216)] | None = None
    """Longest prompt and answer together, in tokens; absent: what the model says."""


class KVBudget(ApiModel):
    """How much KV cache the plan must guarantee; exactly one field."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": rule(
            "[has(self.concurrentSequences), has(self.tokens), has(self.memory), has(self.memoryPercent)]"
            ".filter(set, set).size() == 1",
            "exactly one of concurrentSequences, tokens, memory and memoryPercent must be set",
        )
    }

    concurrent_sequences: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Requests of the longest length at the same time."""
    tokens: Annotated[int, Field(ge=16, le=1_000_000_000)] | None = None
    """Tokens in the cache."""
    memory: Quantity | None = None
    """Bytes for the cache, over all accelerators of a pod."""
    memory_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """Share of the memory that is left when weights and everything else are counted."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("exactly one of concurrentSequences, tokens, memory and memoryPercent must be set")
        return self


class ScalingTarget(ApiModel):
    """The load at which another replica is worth its price."""

    waiting_per_replica: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Requests waiting per replica above which one is added."""
    utilization_percent: Annotated[int, Field(ge=10, le=100)] = 70
    """Share of a replica's capacity that may stay in use after a replica is removed."""


class Scaling(ApiModel):
    """Who decides the number of replicas, and within which bounds."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not be above maxReplicas",
            fieldPath=".minReplicas",
        )
    }

    mode: Literal["QueueDepth", "External", "Fixed"] = "QueueDepth"
    """QueueDepth: the operator scales on its pods' queues. External: another autoscaler writes `/scale`.
    Fixed: people do. In External and Fixed the operator never writes replicas."""
    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """QueueDepth never goes below; to run nothing, suspend the service."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """QueueDepth never goes above."""
    target: ScalingTarget | None = None
    """Thresholds; absent: 4 waiting per replica, 70 percent."""
    scale_down_delay: Duration = "5m"
    """How long the load must have been low before a replica is removed."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"minReplicas {self.min_replicas} must not be above maxReplicas {self.max_replicas}")
        return self


class Rollout(ApiModel):
    """How pods are replaced when the spec changes."""

    strategy: Literal["Auto", "Surge", "OneAtATime"] = "Auto"
    """Surge starts a new pod first and needs a spare accelerator; OneAtATime stops an old one first.
    Auto surges, and changes to OneAtATime when the new pod finds no place for a minute."""


class Drain(ApiModel):
    """What happens to running requests when a pod stops."""

    timeout: Duration = "5m"
    """How long running requests may take to finish."""


class SecretKey(ApiModel):
    """One key of a Secret in this namespace."""

    name: Name
    """Name of the Secret."""
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)] = "keys"
    """Key in the Secret's data."""


class Endpoint(ApiModel):
    """How clients reach the service."""

    api_keys_secret_ref: SecretKey | None = None
    """Accepted API keys, one a line; mounted as a file and read again when it changes. Absent: no key is asked for."""


class Engine(ApiModel):
    """Details of the engine; rarely needed."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": rule(
            "!has(self.extraArgs) || self.extraArgs.all(arg, !["
            + ", ".join(f"'{flag}'" for flag in PLANNED_FLAGS)
            + "]"
            ".exists(flag, arg == flag || arg.startsWith(flag + '=')))",
            "extraArgs must not set a flag that comes from the spec or the plan",
        )
    }

    image: Annotated[str, StringConstraints(pattern=r"^[^\s]+$", max_length=512)] | None = None
    """Engine image; absent: the one the operator was installed with."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Requests in one step at most; absent: from the plan."""
    max_num_batched_tokens: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    """Tokens in one step at most; absent: from the plan."""
    extra_args: Annotated[list[Annotated[str, StringConstraints(max_length=512)]], Field(max_length=32)] | None = None
    """Further flags of `forebay serve`."""

    @model_validator(mode="after")
    def _nothing_planned(self) -> Self:
        for argument in self.extra_args or ():
            if argument.split("=", 1)[0] in PLANNED_FLAGS:
                raise ValueError(f"extraArgs must not set {argument!r}: it comes from the spec or the plan")
        return self


class EnvVar(ApiModel):
    """One environment variable of the engine."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    """Name of the variable."""
    value: Message = ""
    """Its value."""


class LocalReference(ApiModel):
    """The name of an object in this namespace."""

    name: Name
    """Name of the object."""


def _listed_by(key: str) -> dict[str, Any]:
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class PodTemplate(ApiModel):
    """What may be added to the pods; never a whole pod spec."""

    labels: Labels | None = None
    """Further labels; the operator's own win."""
    annotations: Annotations | None = None
    """Further annotations; the operator's own win."""
    node_selector: Labels | None = None
    """Node labels, beside those of the accelerator profile."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] | None = None
    """Tolerations, beside those of the accelerator profile."""
    env: Annotated[list[EnvVar], Field(max_length=32, json_schema_extra=_listed_by("name"))] | None = None
    """Environment variables of the engine."""
    image_pull_secrets: (
        Annotated[list[LocalReference], Field(max_length=8, json_schema_extra=_listed_by("name"))] | None
    ) = None
    """Secrets for pulling the engine's image."""
    priority_class_name: Name | None = None
    """Priority class of the pods."""
    runtime_class_name: Name | None = None
    """Runtime class of the pods."""
    cpu: Quantity | None = None
    """CPU request of a pod; there is no CPU limit, because throttling breaks probes."""


class InferenceServiceSpec(ApiModel):
    """What should run."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": rules(
            rule(
                "!has(self.accelerator) || !has(self.accelerator.memory) || self.accelerator.profile == 'cpu'",
                "accelerator.memory can be set only with the profile cpu",
                fieldPath=".accelerator.memory",
            ),
            rule(
                "!has(self.accelerator) || self.accelerator.profile != 'cpu' || has(self.accelerator.memory)",
                "accelerator.memory must be set with the profile cpu, for example 3Gi",
                fieldPath=".accelerator",
            ),
        )
    }

    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Pods to run: what `kubectl scale` and autoscalers write."""
    suspend: bool = False
    """Stop all pods and leave replicas as it is."""
    model: Model
    """Which model to serve."""
    accelerator: Accelerator | None = None
    """What to run it on; absent: the one kind of accelerator that the labels of the cluster's nodes tell of."""
    parallelism: Parallelism | None = None
    """How to split it; absent: worked out."""
    quantization: Quantization | None = None
    """Number formats; absent: worked out."""
    context: Context | None = None
    """Lengths of requests; absent: what the model says."""
    kv_budget: KVBudget | None = None
    """KV cache to guarantee; absent: all memory that is left when weights and everything else are counted."""
    scaling: Scaling | None = None
    """Autoscaling; absent: Fixed."""
    rollout: Rollout | None = None
    """How pods are replaced."""
    drain: Drain | None = None
    """How pods stop."""
    endpoint: Endpoint | None = None
    """How clients reach the service."""
    engine: Engine | None = None
    """Details of the engine."""
    pod_template: PodTemplate | None = None
    """Additions to the pods."""

    @model_validator(mode="after")
    def _memory_goes_with_cpu(self) -> Self:
        if self.accelerator and (self.accelerator.profile == "cpu") != (self.accelerator.memory is not None):
            raise ValueError("accelerator.memory must be set with the profile cpu and with no other")
        if self.memory is not None:
            quantity_value(self.memory)
        return self

    @property
    def memory(self) -> str | None:
        """Memory of a pod with the profile `cpu`."""
        return self.accelerator.memory if self.accelerator else None
