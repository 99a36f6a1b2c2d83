"""The engine's command line: every flag that the operator renders, in the words of `forebay serve`."""

from forebay_operator.api.common import duration_seconds
from forebay_operator.resolved import Resolved

API_PORT = 8000
OPS_PORT = 8001
MODEL_FOLDER = "/models"
API_KEYS_FOLDER = "/etc/forebay/api-keys"
PLAN_FILE = "/etc/forebay/plan/plan.json"


def model_path(uri: str) -> tuple[str, str]:
    """The claim that a `pvc://` address names, and where the model lies in the container."""
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    return claim, f"{MODEL_FOLDER}/{path}".rstrip("/")


def drain_seconds(resolved: Resolved) -> int:
    """How long running requests may take to finish after SIGTERM."""
    return duration_seconds(resolved.spec.drain.timeout) if resolved.spec.drain else 300


def serve_arguments(resolved: Resolved) -> list[str]:
    """Arguments of `forebay serve`, one `--flag=value` each, in a fixed order."""
    spec, plan = resolved.spec, resolved.plan
    names = spec.model.served_names or [resolved.owner.name]
    arguments = [f"--model={model_path(spec.model.uri)[1]}"]
    arguments += [f"--served-model-name={name}" for name in names]
    if spec.model.revision:
        arguments.append(f"--revision={spec.model.revision}")
    arguments += [
        f"--device={'cpu' if resolved.accelerator.device == 'cpu' else 'cuda'}",  # ROCm's torch calls it cuda, too
        f"--dtype={plan.dtype}",
        f"--tensor-parallel-size={plan.tensor_parallel_size}",
        f"--pipeline-parallel-size={plan.pipeline_parallel_size}",
        f"--quantization={plan.quantization}",
        f"--kv-cache-dtype={plan.engine_kv_cache_dtype}",
        f"--kv-cache-tokens={plan.kv_cache_tokens}",
        f"--block-size={plan.block_size}",
        f"--max-model-len={plan.max_model_len}",
        f"--max-num-seqs={plan.max_num_seqs}",
        f"--max-num-batched-tokens={plan.max_num_batched_tokens}",
        "--host=0.0.0.0",
        f"--port={API_PORT}",
        f"--ops-port={OPS_PORT}",
        f"--drain-timeout={drain_seconds(resolved)}",
        f"--plan-file={PLAN_FILE}",
    ]
    if spec.endpoint and spec.endpoint.api_keys_secret_ref:
        arguments.append(f"--api-key-file={API_KEYS_FOLDER}/{spec.endpoint.api_keys_secret_ref.key}")
    return arguments + list((spec.engine and spec.engine.extra_args) or ())
