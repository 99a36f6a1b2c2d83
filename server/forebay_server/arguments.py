"""The command line of `forebay serve`: flags to `ServerConfig`. No torch, no web framework.

Defaults live in the config classes alone.
"""

import argparse
import json
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, get_args

from forebay_server.config import (
    Device,
    Dtype,
    EngineConfig,
    KVCacheDtype,
    LogLevel,
    Quantization,
    SchedulingPolicy,
    ServerConfig,
)
from forebay_server.errors import ExitCode, StartupError
from forebay_server.text.reasoning import ReasoningParserName
from forebay_server.text.tool_parsers.formats import ToolParserName

_EXAMPLES = """
examples:
  forebay serve --model ./SmolLM2-135M-Instruct.gguf
  forebay serve --model ./SmolLM2-135M-Instruct --served-model-name smollm2 --device cpu --max-model-len 4096
  forebay serve --model ./Llama-3.2-1B-Instruct --quantization int8 --quantization-exclude lm_head
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'

exit codes: 0 drained; 2 bad command line; 11 model not found; 12 not allowed; 13 weights do not fit;
  14 KV cache does not fit; 15 device or engine lost; 16 corrupt weights; 17 engine hung
"""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing, so that one place decides what a bad command line looks like."""

    def error(self, message: str) -> NoReturn:
        raise bad_configuration(f"{message} (see: forebay serve --help)")


def bad_configuration(message: str) -> StartupError:
    """The error for a command line that cannot be served; exit code 2."""
    return StartupError(ExitCode.BAD_CONFIGURATION, "BadConfiguration", message)


def parse_args(argv: Sequence[str]) -> ServerConfig:
    """The configuration that a command line means.

    Raises:
        StartupError: BAD_CONFIGURATION, naming the flag and what would be right.
        SystemExit: 0, after `--help`.
    """
    values = vars(_parser().parse_args(argv))
    values["quantization_exclude"] = tuple(values["quantization_exclude"])
    engine = EngineConfig(**{field.name: values.pop(field.name) for field in fields(EngineConfig)})
    names = tuple(values.pop("served_model_names") or (Path(engine.model).name.removesuffix(".gguf"),))
    values["cors_allow_origins"] = tuple(values["cors_allow_origins"])
    config = ServerConfig(engine=engine, served_model_names=names, **values)
    _refuse_what_is_missing(config)
    _check_together(config)
    return config


def read_plan(plan_file: str) -> dict[str, object]:
    """The operator's plan.

    Raises:
        StartupError: BAD_CONFIGURATION, when the file cannot be read or is no JSON object.
    """
    try:
        plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise bad_configuration(f"--plan-file {plan_file}: {error}") from error
    if not isinstance(plan, dict):
        raise bad_configuration(f"--plan-file {plan_file}: must hold a JSON object")
    return plan


def _refuse_what_is_missing(config: ServerConfig) -> None:
    """Flags that the contract has and this version cannot do yet."""
    engine = config.engine
    of_gpus = () if engine.device == "cpu" else ("fp8",)
    for flag, value, allowed in (
        ("--kv-cache-dtype", engine.kv_cache_dtype, ("auto", "float32", "bfloat16", "float16", "int8", *of_gpus)),
        ("--draft-model", config.draft_model, (None,)),
        ("--num-speculative-tokens", config.num_speculative_tokens, (0,)),
    ):
        if value not in allowed:
            possible = ", ".join(str(item) for item in allowed if item is not None) or "leave it out"
            raise bad_configuration(f"{flag} {value}: this version cannot do that yet (possible: {possible})")


def _check_together(config: ServerConfig) -> None:
    engine = config.engine
    if config.port == config.ops_port != 0:
        raise bad_configuration(f"--port and --ops-port are both {config.port}; they must differ")
    if engine.block_size & (engine.block_size - 1):
        raise bad_configuration(f"--block-size {engine.block_size}: must be a power of two")
    if engine.kv_cache_tokens is not None and engine.kv_cache_tokens < engine.block_size:
        raise bad_configuration(
            f"--kv-cache-tokens {engine.kv_cache_tokens}: must be at least one block (--block-size {engine.block_size})"
        )
    for pattern in engine.quantization_exclude:
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise bad_configuration(f"--quantization-exclude {pattern}: no regular expression: {error}") from None
    if "://" in engine.model:
        raise bad_configuration(f"--model {engine.model}: must be a local file or folder; nothing is downloaded here")
    for flag, path in (("--api-key-file", config.api_key_file), ("--plan-file", config.plan_file)):
        if path is not None and not Path(path).is_file():
            raise bad_configuration(f"{flag} {path}: there is no such file")
    _check_tls(config)
    if config.request_log not in (None, "-") and not Path(config.request_log).parent.is_dir():
        raise bad_configuration(f"--request-log {config.request_log}: there is no such folder")
    endpoint = config.otlp_traces_endpoint
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise bad_configuration(f"--otlp-traces-endpoint {endpoint}: must be an http:// or https:// URL")
    if endpoint is not None and not _has_tracing():
        raise bad_configuration("--otlp-traces-endpoint: the extra is missing; pip install 'forebay[server,tracing]'")
    if config.request_log_body and config.request_log is None:
        raise bad_configuration("--request-log-body: is only for --request-log")


def _has_tracing() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _check_tls(config: ServerConfig) -> None:
    """Certificate and key come together, can be read and fit each other."""
    if config.tls_cert_file is None and config.tls_key_file is None:
        return
    if config.tls_cert_file is None or config.tls_key_file is None:
        raise bad_configuration("--tls-cert and --tls-key: one is of no use without the other")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.tls_cert_file, config.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise bad_configuration(
            f"--tls-cert {config.tls_cert_file} --tls-key {config.tls_key_file}: {error}"
        ) from error


def _whole(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """A converter for argparse: a whole number in a range."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < lowest or (highest is not None and value > highest):
            wanted = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
            raise argparse.ArgumentTypeError(f"{text} is out of range: {wanted}")
        return value

    return convert


def _seconds(text: str) -> float:
    """A converter for argparse: a positive, finite time."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is out of range: above 0 seconds")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="forebay serve",
        description="Serve one model behind an OpenAI-style API.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    defaults = {
        field.name: field.default
        for config in (EngineConfig, ServerConfig)
        for field in fields(config)
        if field.default is not MISSING
    }

    def add(group: argparse._ArgumentGroup, flag: str, help_text: str, **options: Any) -> None:
        name = options.setdefault("dest", flag.removeprefix("--").replace("-", "_"))
        if name in defaults:
            options.setdefault("default", defaults[name])
            if defaults[name] not in (None, ()):
                help_text += f" (default: {defaults[name]})"
        group.add_argument(flag, help=help_text, **options)

    model = parser.add_argument_group("model")
    add(model, "--model", "a GGUF file, or a folder with one or with config.json and safetensors", required=True)
    add(
        model,
        "--served-model-name",
        "names that clients may use, the first is reported (default: the file or folder of --model)",
        dest="served_model_names",
        nargs="+",
        action="extend",
        metavar="NAME",
    )
    add(model, "--revision", "of the model; shown by /v1/models")
    add(model, "--device", "where to compute", choices=get_args(Device))
    add(model, "--dtype", "of weights and arithmetic", choices=get_args(Dtype))
    add(
        model,
        "--quantization",
        "of the weights; auto: as the checkpoint has them, if the device runs that well; none: to --dtype",
        choices=get_args(Quantization),
    )
    add(
        model,
        "--quantization-group-size",
        "for int4: inputs that share a scale",
        type=int,
        choices=(32, 64, 128),
    )
    add(
        model,
        "--quantization-exclude",
        "layers to leave in --dtype, as names (lm_head, down_proj, model.layers.0.mlp.up_proj) or re:EXPRESSION",
        nargs="+",
        action="extend",
        metavar="LAYER",
        default=[],
    )
    add(model, "--kv-cache-dtype", "of the KV cache", choices=get_args(KVCacheDtype))
    add(model, "--tensor-parallel-size", "ranks that share each layer", type=_whole(1))
    add(model, "--pipeline-parallel-size", "stages, each with some of the layers", type=_whole(1))
    add(model, "--draft-model", "a small model that guesses ahead")
    add(model, "--num-speculative-tokens", "guesses a step", type=_whole(0))

    sizes = parser.add_argument_group("sizes, in tokens unless said otherwise")
    add(sizes, "--max-model-len", "longest prompt and answer together (default: the model's)", type=_whole(2))
    add(sizes, "--max-num-seqs", "requests in one step at most", type=_whole(1))
    add(sizes, "--max-num-batched-tokens", "tokens in one step at most", type=_whole(1))
    add(
        sizes,
        "--long-prefill-token-threshold",
        "tokens of one prompt in a step while others want some (default: a quarter of the step)",
        type=_whole(1),
    )
    add(
        sizes,
        "--kv-cache-tokens",
        "room in the KV cache (default: what a GPU has free; on CPUs from the sizes above)",
        type=_whole(1),
    )
    add(sizes, "--block-size", "tokens in a KV block, a power of two", type=_whole(1))

    api = parser.add_argument_group("API")
    add(api, "--host", "address to listen on")
    add(api, "--port", "of the API; 0: any free one", type=_whole(0, 65535))
    add(api, "--ops-port", "of probes, progress, metrics and load; 0: any free one", type=_whole(0, 65535))
    add(api, "--max-queued-requests", "choices waiting or running before new ones get 429", type=_whole(1))
    add(api, "--max-queued-tokens", "prompt tokens waiting or running before new requests get 429", type=_whole(1))
    add(
        api,
        "--scheduling-policy",
        "priority: requests with a lower `priority` first; fcfs: by arrival; between tenants in turn",
        choices=get_args(SchedulingPolicy),
    )
    add(api, "--api-key-file", "file with one API key a line for /v1/*; read again when it changes")
    add(
        api,
        "--cors-allow-origin",
        "origins whose web pages may call the API from a browser; * for all (default: none)",
        dest="cors_allow_origins",
        nargs="+",
        action="extend",
        metavar="ORIGIN",
        default=[],
    )
    add(api, "--tls-cert", "PEM file with the certificate chain; the API then speaks HTTPS", dest="tls_cert_file")
    add(api, "--tls-key", "PEM file with its private key", dest="tls_key_file")
    add(api, "--request-log", "file for one JSON line a request, without any text; - for standard output")
    add(api, "--request-log-body", "the lines have what clients sent, prompts included", action="store_true")
    add(api, "--tool-call-parser", "how the model writes tool calls", choices=get_args(ToolParserName))
    add(api, "--reasoning-parser", "tell the model's reasoning from its answer", choices=get_args(ReasoningParserName))
    add(
        api,
        "--otlp-traces-endpoint",
        "URL that traces go to, such as http://collector:4318/v1/traces; needs the extra tracing",
    )
    add(api, "--log-level", "what to log on stderr", choices=get_args(LogLevel))

    add(
        api,
        "--max-engine-restarts",
        "an engine that ends while serving is started again so often in 10 minutes",
        type=_whole(0),
    )

    times = parser.add_argument_group("times, in seconds")
    for flag, name, help_text in (
        ("--queue-timeout", "queue_timeout_seconds", "a request without a first token by then gets 503"),
        ("--request-timeout", "request_timeout_seconds", "a request that is not answered in full by then gets 504"),
        ("--drain-timeout", "drain_timeout_seconds", "after SIGTERM running requests have this long"),
        (
            "--hang-timeout",
            "hang_timeout_seconds",
            "work is pending and no step ends, waits for a CPU aside: the engine hangs",
        ),
        ("--load-stall-timeout", "load_stall_timeout_seconds", "while loading no byte arrives: /livez fails"),
        ("--compile-timeout", "compile_timeout_seconds", "compiling takes longer: /livez fails"),
    ):
        add(times, flag, help_text, dest=name, type=_seconds, metavar="SECONDS")

    contract = parser.add_argument_group("operator")
    add(contract, "--plan-file", "JSON with the operator's plan; /startupz shows it beside what was measured")
    return parser
