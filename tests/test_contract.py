"""What holds operator and server together: each rendered flag is parsed, each answer that is read is given."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay_operator.api.inference_service import PLANNED_FLAGS
from forebay_operator.failures import EXIT_REASONS
from forebay_operator.flags import API_PORT, OPS_PORT
from forebay_operator.names import PLAN_ANNOTATION
from forebay_operator.scrape import scraped
from forebay_operator.scraped import Measured
from forebay_server.arguments import parse_args
from forebay_server.engine import device
from forebay_server.errors import ExitCode, StartupError
from forebay_server.ops.reports import load_report, startup_report
from forebay_server.ops.shared_state import StateSnapshot
from forebay_server.planned_memory import PlannedMemory
from tests.test_operator.world import World

CASES: list[dict[str, Any]] = [
    {},
    {
        "model": {"uri": "pvc://models/folder", "revision": "abc123", "servedNames": ["one", "two"]},
        "drain": {"timeout": "90s"},
        "endpoint": {"apiKeysSecretRef": {"name": "keys", "key": "keys"}},
        "engine": {"maxNumSeqs": 8, "maxNumBatchedTokens": 256, "extraArgs": ["--queue-timeout=5"]},
    },
    {"quantization": {"weights": "float32", "kvCache": "float32"}},
]


def rendered(spec: dict[str, Any], folder: Path) -> list[str]:
    """The arguments of `forebay serve`, with the mounted files at places where a test can have them."""
    world = World(**spec)
    world.know_the_model()
    program, *arguments = world.objects["Deployment", "small"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert program == "serve"
    (folder / "plan.json").write_text("{}")
    (folder / "keys").write_text("key\n")
    return [
        argument.replace("/etc/forebay/plan", str(folder)).replace("/etc/forebay/api-keys", str(folder))
        for argument in arguments
    ]


@pytest.mark.parametrize("spec", CASES, ids=["smallest", "everything", "float32"])
def test_the_servers_own_parser_takes_what_the_operator_renders(spec: dict[str, Any], tmp_path: Path) -> None:
    config = parse_args(rendered(spec, tmp_path))
    assert (config.port, config.ops_port) == (API_PORT, OPS_PORT)
    assert config.engine.device == "cpu"
    assert config.engine.kv_cache_tokens is not None
    assert config.engine.max_model_len == 2048
    assert config.drain_timeout_seconds == (90 if "drain" in spec else 300)
    names = spec.get("model", {}).get("servedNames", ["small"])
    assert list(config.served_model_names) == names


def test_every_rendered_flag_is_closed_to_extra_args(tmp_path: Path) -> None:
    extra = {"--queue-timeout"}
    flags = {argument.split("=")[0] for argument in rendered(CASES[1], tmp_path)}
    assert flags - extra <= set(PLANNED_FLAGS)


def test_every_exit_code_of_the_server_has_a_reason() -> None:
    codes = {int(code) for code in ExitCode if int(code) not in (0, 1)}
    assert codes == set(EXIT_REASONS)


def test_the_operator_reads_progress_and_load_as_the_server_writes_them() -> None:
    now = StateSnapshot(phase=1, bytes_done=12, bytes_total=48, num_running=3, num_waiting=2)
    told = scraped(startup_report(now, 1.0, None), load_report(now, 0.0))
    assert (told.phase, told.bytes_loaded, told.bytes_total) == ("loading", 12, 48)
    assert told.running == 3
    assert told.waiting is not None
    assert told.waiting >= 2
    assert told.measured is None


def test_the_operator_reads_what_was_measured_as_the_server_writes_it() -> None:
    now = StateSnapshot(
        num_blocks=8,
        weight_bytes=1000,
        kv_cache_tokens=128,
        kv_bytes_per_token=64,
        activation_peak_bytes=512,
        free_bytes=9000,
    )
    told = scraped(startup_report(now, 1.0, {"kvCacheTokens": 128}), {}).measured
    assert told == Measured(
        weight_bytes=1000, kv_cache_tokens=128, kv_bytes_per_token=64, activation_peak_bytes=512, free_bytes=9000
    )


def test_the_engine_reads_the_plan_as_the_operator_writes_it() -> None:
    world = World()
    world.know_the_model()
    template = world.objects["Deployment", "small"]["spec"]["template"]
    plan = json.loads(template["metadata"]["annotations"][PLAN_ANNOTATION])
    assert plan == world.service["status"]["plan"]
    memory = plan["memory"]
    told = PlannedMemory.of(plan)
    assert told is not None
    assert (told.total, told.weights, told.kv_cache) == (
        memory["totalBytes"],
        memory["weightsBytes"],
        memory["kvCacheBytes"],
    )
    used = told.weights + told.kv_cache + told.step + told.reserved
    assert used + memory["marginBytes"] + plan["headroomBytes"] == told.total


GPU_CASES: list[dict[str, Any]] = [
    {"accelerator": {"profile": "h100-80gb"}},
    {"accelerator": {"profile": "h200-141gb"}, "quantization": {"weights": "fp8", "kvCache": "fp8"}},
    {"accelerator": {"profile": "a100-80gb"}, "quantization": {"weights": "int8", "kvCache": "int8"}},
    {"accelerator": {"profile": "h100-80gb"}, "parallelism": {"tensor": 2}},
]


@pytest.mark.parametrize("spec", GPU_CASES, ids=["bf16", "fp8", "int8", "tensor parallel"])
def test_what_is_rendered_for_a_gpu_node_leads_to_an_engine_on_a_gpu(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the loading of weights: the engine's own decisions, with a torch that says it has GPUs."""
    config = parse_args(rendered(spec, tmp_path)).engine
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    where = device.resolve_device(config.device)
    assert where == torch.device("cuda", 0)
    dtype = torch.bfloat16
    asked = spec.get("quantization", {}).get("kvCache", "bf16")
    kv_dtypes = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
    assert device.resolve_kv_dtype(config, dtype) == kv_dtypes[asked]
    options = device.quantization_options(config, where)
    assert options.kept_kinds == {"int8", "int4", "fp8"}
    assert not options.always_quantizes_input
    assert config.tensor_parallel_size == spec.get("parallelism", {}).get("tensor", 1)
    assert config.kv_cache_tokens is not None


def test_a_pod_for_a_gpu_that_finds_none_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = parse_args(rendered(GPU_CASES[0], tmp_path)).engine
    with pytest.raises(StartupError, match="no GPU can be used") as raised:
        device.resolve_device(config.device)
    assert raised.value.exit_code == ExitCode.BAD_CONFIGURATION
