"""The operator's plan beside what the engine finds: the arithmetic, the measurement, and real servers that refuse."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.config import EngineConfig
from forebay_server.engine.engine import load_engine
from forebay_server.engine.kv_cache import KVCacheLayout
from forebay_server.engine.memory_meter import measure_step, prompt_lengths
from forebay_server.engine.plan_check import check_step, room, with_plan
from forebay_server.errors import ExitCode, StartupError
from forebay_server.planned_memory import PlannedMemory
from tests.fakes.server_process import REAL, ServerProcess
from tests.smollm2 import smollm2_gguf
from tests.test_server.models.tiny_llama import save_tiny_llama

MB = 10**6
LAYOUT = KVCacheLayout(num_blocks=100, block_size=16, bytes_per_token=1000, dtype=torch.bfloat16)


def plan_of(total: int, weights: int = 50 * MB, kv_cache: int = 2 * MB, runtime: int = 10 * MB) -> dict[str, Any]:
    """A plan file's content, with the terms that matter here."""
    terms = {
        "totalBytes": total,
        "weightsBytes": weights,
        "kvCacheBytes": kv_cache,
        "activationsBytes": 3 * MB,
        "logitsBytes": MB,
        "graphsBytes": 0,
        "runtimeBytes": runtime,
        "communicationBytes": 0,
        "marginBytes": MB,
    }
    return {"memory": terms}


def planned(total: int, **terms: int) -> PlannedMemory:
    found = PlannedMemory.of(plan_of(total, **terms))
    assert found is not None
    return found


def test_the_plans_terms_are_read() -> None:
    assert planned(100 * MB) == PlannedMemory(
        total=100 * MB, weights=50 * MB, kv_cache=2 * MB, step=4 * MB, reserved=10 * MB
    )
    assert PlannedMemory.of(None) is None
    assert PlannedMemory.of({"tensorParallelSize": 1}) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"totalBytes": -1}, "memory.totalBytes"),
        ({"weightsBytes": "5"}, "memory.weightsBytes"),
        ({"kvCacheBytes": True}, "memory.kvCacheBytes"),
        ({"runtimeBytes": None}, "memory.runtimeBytes"),
    ],
)
def test_a_plan_that_is_none_is_bad_configuration(change: dict[str, Any], named: str) -> None:
    plan = plan_of(100 * MB)
    plan["memory"] |= change
    with pytest.raises(StartupError, match=named) as refused:
        PlannedMemory.of(plan)
    assert refused.value.exit_code == ExitCode.BAD_CONFIGURATION


def test_a_plan_whose_memory_is_no_object_is_bad_configuration() -> None:
    with pytest.raises(StartupError, match="memory must be an object"):
        PlannedMemory.of({"memory": [1]})


def test_room_is_what_is_free_and_within_the_plan() -> None:
    assert room(None, 7 * MB) == 7 * MB
    assert room(planned(100 * MB), 500 * MB) == 90 * MB
    assert room(planned(100 * MB), 30 * MB) == 30 * MB
    assert room(planned(100 * MB), 500 * MB, weight_bytes=60 * MB) == 30 * MB
    assert room(planned(100 * MB), 500 * MB, weight_bytes=95 * MB) == 0


def test_cache_and_step_must_fit_together() -> None:
    def check(total: int, peak: int, free: int = 500 * MB) -> None:
        check_step(
            planned(total), LAYOUT, peak_bytes=peak, num_tokens=512, weight_bytes=50 * MB, free_bytes=free
        )  # the cache takes 1.6 MB

    check(total=70 * MB, peak=8 * MB)
    with pytest.raises(StartupError) as refused:
        check(total=70 * MB, peak=9 * MB)
    error = refused.value
    assert (error.exit_code, error.need_bytes, error.have_bytes) == (14, 10_600_000, 10 * MB)
    assert error.suggestion == (
        "use --kv-cache-tokens 992, a smaller --max-num-batched-tokens, or 600,000 bytes more memory"
    )
    assert "the plan counts on 2,000,000 bytes for the KV cache" in error.message
    with pytest.raises(StartupError, match="11,600,000 bytes; 9,000,000 are there") as refused:
        check(total=70 * MB, peak=10 * MB, free=9 * MB)
    assert "--kv-cache-tokens" not in (refused.value.suggestion or "")


def test_other_errors_stay_as_they_are() -> None:
    error = StartupError(ExitCode.CORRUPT_WEIGHTS, "CorruptWeights", "cut short")
    assert with_plan(error, planned(MB)) is error
    assert with_plan(StartupError(ExitCode.WEIGHTS_DO_NOT_FIT, "W", "m"), None).message == "m"


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(2, 5000), st.integers(1, 800))
def test_prompts_fill_a_step_within_the_cache(tokens: int, seqs: int, model_len: int, blocks: int) -> None:
    lengths = prompt_lengths(tokens, max_num_seqs=seqs, max_model_len=model_len, num_blocks=blocks, block_size=16)
    assert sum(lengths) <= tokens
    assert len(lengths) <= seqs
    assert sum(length // 16 + 1 for length in lengths) <= blocks
    assert all(0 < length < model_len for length in lengths)
    if seqs * (model_len - 1) >= tokens and blocks * 16 >= tokens + 32 * seqs:
        assert sum(lengths) == tokens


def test_a_larger_step_is_measured_larger(tmp_path: Path) -> None:
    """The feed-forward of 8,192 numbers in float32 shows in the resident size; nothing of the measurement stays."""
    folder = save_tiny_llama(tmp_path, intermediate_size=8192, max_position_embeddings=4096)
    peaks = {}
    for num_tokens in (64, 2048):
        config = EngineConfig(
            model=str(folder), dtype="float32", kv_cache_tokens=8192, max_num_batched_tokens=num_tokens, max_num_seqs=8
        )
        engine, facts = load_engine(config, debug=True)
        step = measure_step(engine, facts)
        assert step.num_tokens == num_tokens
        assert engine.scheduler.num_running == engine.scheduler.num_waiting == engine.scheduler.pool.num_held == 0
        peaks[num_tokens] = step.peak_bytes
    assert peaks[2048] > 2048 * 8192 * 4 * 2  # gate and up at once, at least
    assert peaks[64] < peaks[2048] / 4


def planned_server(folder: Path, plan: dict[str, Any], *arguments: str) -> ServerProcess:
    """A server with the real model and a plan."""
    (folder / "plan.json").write_text(json.dumps(plan))
    return serve(folder, "--plan-file", str(folder / "plan.json"), *arguments)


def serve(folder: Path, *arguments: str, program: tuple[str, ...] = REAL) -> ServerProcess:
    options = ["--model", str(smollm2_gguf()), "--device", "cpu", "--max-model-len", "1024", *arguments]
    return ServerProcess(folder, options, program=program, wait_seconds=0)


@pytest.mark.model
def test_weights_beyond_the_plan_end_a_real_server_with_13(tmp_path: Path) -> None:
    with contextlib.closing(planned_server(tmp_path, plan_of(200 * MB), "--quantization", "none")) as server:
        assert server.wait(120) == 13
        told = server.termination
    assert (told["reason"], told["haveBytes"]) == ("WeightsDoNotFit", 190 * MB)
    assert told["needBytes"] == pytest.approx(2 * 134_515_008, rel=0.01)
    assert "the plan counts on 50,000,000 bytes for the weights" in told["message"]
    assert told["suggestion"]


@pytest.mark.model
def test_a_step_beyond_the_plan_ends_a_real_server_with_14(tmp_path: Path) -> None:
    """The engine's own estimate of so small a step, 1.3 MB, passes: only the measurement finds what sampling takes."""
    plan = plan_of(4 * 134_515_008 + 1024 * 46_080 + 10 * MB + 1_400_000)
    arguments = ("--dtype", "float32", "--kv-cache-tokens", "1024", "--max-num-seqs", "1")
    with contextlib.closing(planned_server(tmp_path, plan, *arguments, "--max-num-batched-tokens", "16")) as server:
        assert server.wait(60) == 14
        told = server.termination
    assert told["reason"] == "KVCacheDoesNotFit"
    assert "beside a step of 16 tokens" in told["message"]
    assert told["needBytes"] > told["haveBytes"] > 1024 * 46_080
    assert told["suggestion"]


@pytest.mark.model
def test_a_real_server_reports_plan_and_measurement(tmp_path: Path) -> None:
    plan = plan_of(2000 * MB)
    arguments = ("--kv-cache-tokens", "1024", "--quantization", "none")
    with contextlib.closing(planned_server(tmp_path, plan, *arguments)) as server:
        server.wait_until_listening()
        server.wait_until_ready(240)
        report = server.ops("/startupz").json
        metrics = server.ops("/metrics").body.decode()
    assert report["planned"] == plan
    measured = report["measured"]
    assert measured["weightBytes"] == pytest.approx(2 * 134_515_008, rel=0.01)
    assert measured["kvCacheBytes"] == 1024 * 23_040
    assert MB < measured["activationPeakBytes"] < 200 * MB
    assert measured["freeBytes"] > measured["weightBytes"]
    values = dict(
        line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith(("forebay_plan", "forebay_m"))
    )
    by_name = {name.partition("{")[0]: float(value) for name, value in values.items()}
    assert by_name == {
        "forebay_memory_weights_bytes": measured["weightBytes"],
        "forebay_memory_kv_cache_bytes": measured["kvCacheBytes"],
        "forebay_memory_activation_peak_bytes": measured["activationPeakBytes"],
        "forebay_memory_free_bytes": measured["freeBytes"],
        "forebay_plan_total_bytes": 2000 * MB,
        "forebay_plan_weights_bytes": 50 * MB,
        "forebay_plan_kv_cache_bytes": 2 * MB,
        "forebay_plan_activation_bytes": 4 * MB,
    }


@pytest.mark.model
@pytest.mark.parametrize(("limit", "dtype", "code"), [(700 * MB, "float32", 13), (900 * MB, "bfloat16", 14)])
def test_a_control_group_that_is_too_small_is_told_before_the_kernel_kills(
    limit: int, dtype: str, code: int, tmp_path: Path
) -> None:
    with control_group(limit) as procs:
        enter = f"import os; open({str(procs)!r}, 'w').write(str(os.getpid())); "
        run = "import runpy, sys; sys.argv.insert(1, 'serve'); runpy.run_module('forebay_cli', run_name='__main__')"
        arguments = ("--dtype", dtype, "--kv-cache-tokens", "40000")
        with contextlib.closing(serve(tmp_path, *arguments, program=("-c", enter + run))) as server:
            assert server.wait(120) == code
            told = server.termination
    assert told["needBytes"] > told["haveBytes"]
    assert told["haveBytes"] < limit


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[Path]:
    """A group of its own with a limit of memory; its file of processes."""
    versions = [
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ]
    for root, name in versions:
        folder = root / f"forebay-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / name).write_text(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        try:
            yield folder / "cgroup.procs"
        finally:
            folder.rmdir()
        return
    pytest.skip("this machine lets nobody make control groups with a limit of memory")
