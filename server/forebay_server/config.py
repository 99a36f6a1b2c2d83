"""The server's configuration: read once at start, frozen; the command line is made from these fields."""

from dataclasses import dataclass
from typing import Literal

from forebay_server.text.reasoning import ReasoningParserName
from forebay_server.text.tool_parsers.formats import ToolParserName

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["auto", "none", "int8", "int8-weight-only", "int4", "fp8"]
LogLevel = Literal["debug", "info", "warning", "error"]
SchedulingPolicy = Literal["fcfs", "priority"]
KVCacheDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine process needs to know. Sizes in tokens unless the name says otherwise."""

    model: str
    """A GGUF file, or a folder with one GGUF file or with config.json and safetensors."""
    device: Device = "auto"
    dtype: Dtype = "auto"
    """Arithmetic and weights; auto: what the checkpoint was trained in, bfloat16 for GGUF."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    quantization: Quantization = "auto"
    """Of the weights. auto: a quantized checkpoint keeps its format where the device runs it well and dtype is not
    float32; otherwise as none, which dequantizes to dtype."""
    quantization_group_size: int = 32
    """in_features that share a scale in int4."""
    quantization_exclude: tuple[str, ...] = ()
    """Layers that stay in dtype when weights are quantized while loading."""
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_cache_tokens: int | None = None
    """KV slots to allocate, rounded up to whole blocks; None: on a GPU what the largest step leaves free, else enough
    for max_num_seqs short or one longest request."""
    max_model_len: int | None = None
    """Longest prompt and answer together; None: what the model says."""
    max_num_seqs: int = 64
    """Requests in one step at most; reserves nothing."""
    max_num_batched_tokens: int = 512
    """Tokens in one step at most: the budget that prefill chunks and decodes share."""
    long_prefill_token_threshold: int | None = None
    """Tokens of one prompt in one step while others want some; None: a quarter of max_num_batched_tokens."""
    block_size: int = 16
    """Tokens in a KV block; a power of two."""

    @property
    def num_ranks(self) -> int:
        """Processes that compute the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The whole of `forebay serve`."""

    engine: EngineConfig
    served_model_names: tuple[str, ...]
    """Names that clients may use; the first one is reported."""
    revision: str | None = None
    host: str = "0.0.0.0"
    port: int = 8000
    ops_port: int = 8001
    """Probes, progress, metrics and load: answered by a process of its own."""
    max_queued_requests: int = 256
    """Requests waiting or running before new ones get 429; `n` counts fully."""
    max_queued_tokens: int | None = None
    """Prompt tokens of the requests that wait or run before new ones get 429; choices count fully. None: no bound."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """fcfs: by arrival; priority: by `priority`, lower first, then by arrival. Tenants take turns in both."""
    queue_timeout_seconds: float = 60.0
    """A request that has no first token by then gets 503."""
    request_timeout_seconds: float | None = None
    """A request that is not answered in full by then ends with 504; None: it may take as long as it takes."""
    drain_timeout_seconds: float = 300.0
    """After SIGTERM running requests have this long."""
    api_key_file: str | None = None
    """One key a line; read again when it changes."""
    cors_allow_origins: tuple[str, ...] = ()
    """Web pages of these origins may call the API from a browser; `*`: all; empty: none."""
    tls_cert_file: str | None = None
    """PEM certificate chain: the API speaks HTTPS, the ops port does not."""
    tls_key_file: str | None = None
    request_log: str | None = None
    """One JSON line a request goes into this file; `-`: the standard output; None: nowhere."""
    request_log_body: bool = False
    """The lines have what the clients sent, prompts included."""
    otlp_traces_endpoint: str | None = None
    """Where a trace of each request is sent, by OTLP over HTTP; None: nowhere."""
    plan_file: str | None = None
    """JSON with the operator's plan, to compare with what was measured."""
    max_engine_restarts: int = 3
    """An engine that ends or hangs while serving is started again so often within ten minutes; then the server ends."""
    hang_timeout_seconds: float = 60.0
    """Work is pending and no step ends for so long: the engine hangs."""
    load_stall_timeout_seconds: float = 300.0
    """While loading no byte arrives for so long: `/livez` fails."""
    compile_timeout_seconds: float = 1800.0
    """Compiling may take so long before `/livez` fails."""
    max_request_bytes: int = 8 * 1024 * 1024
    """Longer request bodies get 413."""
    log_level: LogLevel = "info"
    tool_call_parser: ToolParserName = "auto"
    """How the model writes tool calls; auto: as its chat template tells."""
    reasoning_parser: ReasoningParserName = "none"
    """How the model marks reasoning, which is then told apart from its answer; deepseek_r1: it begins unmarked."""
    draft_model: str | None = None
    num_speculative_tokens: int = 0
