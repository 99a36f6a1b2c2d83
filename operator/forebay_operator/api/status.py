"""The status of an InferenceService: what the operator has seen and decided."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from forebay_operator.api.common import ApiModel, ShortText
from forebay_operator.planner.result import MAX_LINE_CHARS, MAX_LINES

Timestamp = Annotated[str, StringConstraints(max_length=40), Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]

ConditionType = Literal[
    "Ready",
    "SpecValid",
    "ReferencesResolved",
    "PlanFeasible",
    "PlanVerified",
    "Progressing",
    "ScalingActive",
    "Degraded",
    "Stalled",
]
Phase = Literal["pending", "downloading", "loading", "compiling", "warming", "serving", "draining", "failed"]


class Condition(ApiModel):
    """One statement about the service, as Kubernetes writes conditions."""

    type: ConditionType
    """What the statement is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9]*)$", max_length=64)]
    """One CamelCase word for programs."""
    message: Annotated[str, StringConstraints(max_length=2048)]
    """A sentence for people."""
    last_transition_time: Timestamp
    """When the status last changed."""
    observed_generation: Count
    """The generation of the spec that the statement is about."""


class PodLoad(ApiModel):
    """How far one pod has come."""

    pod: ShortText
    """Name of the pod."""
    phase: Phase
    """What the pod is doing."""
    bytes_loaded: Count | None = None
    """Bytes of the model read so far."""
    bytes_total: Count | None = None
    """Bytes of the model."""
    reason: ShortText | None = None
    """Why it waits or has failed, one word."""
    message: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Why it waits or has failed."""


class ScalingInputs(ApiModel):
    """The numbers that a scaling decision was made from."""

    current_replicas: Count
    """Replicas asked for at that time."""
    ready_replicas: Count
    """Pods that serve."""
    loading_replicas: Count
    """Pods that will serve."""
    reporting_replicas: Count
    """Serving pods whose load is known."""
    waiting: Count
    """Requests waiting in the reporting pods."""
    running: Count
    """Requests running in the reporting pods."""


class Autoscaling(ApiModel):
    """The last scaling decision."""

    desired_replicas: Count
    """Replicas that the load asks for."""
    reason: Annotated[str, StringConstraints(max_length=64)]
    """One CamelCase word."""
    message: Annotated[str, StringConstraints(max_length=512)]
    """The decision in words, with its numbers."""
    inputs: ScalingInputs
    """What it was made from."""
    last_scale_time: Timestamp | None = None
    """When the operator last changed replicas."""


class Guaranteed(ApiModel):
    """What always fits at once."""

    sequences: Count
    """So many requests..."""
    length: Count
    """...of so many tokens each."""


class MemoryPlan(ApiModel):
    """Bytes on the fullest accelerator."""

    total_bytes: Count
    """What it has."""
    weights_bytes: Count
    """Weights."""
    kv_cache_bytes: Count
    """KV cache."""
    activations_bytes: Count
    """Highest point of one step."""
    logits_bytes: Count
    """Scores during sampling."""
    graphs_bytes: Count
    """Captured CUDA graphs."""
    runtime_bytes: Count
    """Context, libraries and interpreter."""
    communication_bytes: Count
    """Buffers of the collectives."""
    margin_bytes: Count
    """Kept free."""


class Estimate(ApiModel):
    """What the roofline says of speed and cost; not measured."""

    batch: Count
    """Requests at once."""
    prompt_tokens: Count
    """Tokens in a prompt."""
    output_tokens: Count
    """Tokens in an answer."""
    time_to_first_token_milliseconds: Count
    """From request to first token."""
    inter_token_latency_microseconds: Count
    """Between two tokens of one request."""
    output_tokens_per_second: Count
    """Of one pod, all requests together."""
    cost_per_million_tokens_usd: ShortText = Field(alias="costPerMillionTokensUSD")
    """Lowest and highest; empty: no price is known."""
    naive_output_tokens_per_second: Count
    """The same, one request at a time."""
    naive_cost_per_million_tokens_usd: ShortText = Field(alias="naiveCostPerMillionTokensUSD")
    """The same, one request at a time."""
    assumptions: Annotated[str, StringConstraints(max_length=1024)]
    """What was assumed."""


class RejectedOption(ApiModel):
    """An alternative that was not chosen."""

    option: Annotated[str, StringConstraints(max_length=MAX_LINE_CHARS)]
    """The alternative."""
    reason: Annotated[str, StringConstraints(max_length=MAX_LINE_CHARS)]
    """Why it lost."""


class PlanStatus(ApiModel):
    """The plan and its arithmetic; integers are bytes, tokens or counts."""

    tensor_parallel_size: Count
    """Accelerators that share each layer."""
    pipeline_parallel_size: Count
    """Stages that the layers are cut into."""
    weights: ShortText
    """Format of the linear layers."""
    dtype: ShortText
    """Arithmetic, and every tensor that is not quantized."""
    quantization: ShortText
    """What the engine converts while loading."""
    weight_bytes_per_gpu: Count = Field(alias="weightBytesPerGPU")
    """Weights on one accelerator."""
    kv_cache_dtype: ShortText
    """Format of the KV cache."""
    kv_bytes_per_token: Count
    """KV cache of one token, all accelerators together."""
    kv_bytes_per_token_per_gpu: Count = Field(alias="kvBytesPerTokenPerGPU")
    """KV cache of one token on one accelerator."""
    kv_cache_tokens: Count
    """Tokens in a pod's KV cache."""
    num_blocks: Count
    """Blocks in a pod's KV cache."""
    block_size: Count
    """Tokens in a block."""
    max_model_len: Count
    """Longest prompt and answer together."""
    max_num_seqs: Count
    """Requests in one step at most."""
    max_num_batched_tokens: Count
    """Tokens in one step at most."""
    guaranteed: Guaranteed
    """What always fits at once."""
    memory: MemoryPlan
    """Where the memory goes."""
    headroom_bytes: Count
    """What is left over."""
    estimate: Estimate
    """Speed and cost, from the roofline."""
    explanation: Annotated[
        list[Annotated[str, StringConstraints(max_length=MAX_LINE_CHARS)]], Field(max_length=MAX_LINES)
    ]
    """The arithmetic, a line a step."""
    rejected: Annotated[list[RejectedOption], Field(max_length=MAX_LINES)]
    """Alternatives and why they lost."""


class ModelStatus(ApiModel):
    """What is known of the model at `uri` and `revision`."""

    uri: Annotated[str, StringConstraints(max_length=512)]
    """Where the facts were read."""
    revision: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Of which revision."""
    architecture: ShortText
    """Kind of model."""
    num_parameters: Count
    """Numbers in all weights."""
    max_positions: Count
    """Longest context that the model was made for, in tokens."""
    checkpoint_format: ShortText
    """Numbers of the linear layers as the files hold them."""
    facts: Annotated[str, StringConstraints(max_length=4096)]
    """Everything the planner knows of the model, as JSON."""


class EngineRefusal(ApiModel):
    """How often in a row the engine has refused to start what one revision asks for."""

    revision: ShortText
    """Which revision."""
    exit_code: Count
    """The engine's exit code, the same each time."""
    reason: ShortText
    """The exit code in one word."""
    message: Annotated[str, StringConstraints(max_length=512)]
    """What the engine said last: needs, has, suggests."""
    count: Count
    """How often; after three the operator does not start it again."""
    last_time: Timestamp
    """When it last refused."""


class InferenceServiceStatus(ApiModel):
    """What has been seen and decided."""

    observed_generation: Count
    """The generation of the spec that this status is about."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ]
    """Statements about the service; Ready is the summary."""
    model: ModelStatus | None = None
    """Facts of the model; absent until they are known."""
    accelerator_profile: ShortText | None = None
    """The accelerator in use: the spec's, or the one that the nodes' labels told of when it was first looked at."""
    plan: PlanStatus | None = None
    """The plan that the pods run; absent until there is one."""
    revision: ShortText | None = None
    """Hash of everything that the pod template was made from."""
    replicas: Count = 0
    """Pods that exist."""
    ready_replicas: Count = 0
    """Pods of the current revision that serve."""
    updated_replicas: Count = 0
    """Pods of the current revision."""
    selector: Annotated[str, StringConstraints(max_length=512)] = ""
    """Label selector of the pods, for `/scale`."""
    endpoint: Annotated[str, StringConstraints(max_length=512)] = ""
    """Base address for OpenAI clients inside the cluster."""
    load: Annotated[list[PodLoad], Field(max_length=64)] | None = None
    """How far the pods have come; pods that serve are left out once all do."""
    refusal: EngineRefusal | None = None
    """Refusals of the engine; absent while there are none, and again once a pod of the revision serves."""
    autoscaling: Autoscaling | None = None
    """The last scaling decision; absent unless scaling.mode is QueueDepth."""
