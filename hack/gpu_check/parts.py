"""What each part does; runs in a process of its own. In a dry run: tiny, on a CPU, kernels in Triton's interpreter."""

import contextlib
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from forebay_kernels.bench_command import main as bench_kernels
from forebay_kernels.dispatch import interpreted_on_cpu
from forebay_server.bench.engine_figures import EngineBench
from forebay_server.bench.random_checkpoint import write_random_checkpoint
from forebay_server.config import EngineConfig
from forebay_server.engine.engine import Engine, EngineFacts, load_engine, warm_up
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams

QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
TINY: dict[str, Any] = QWEN3_06B | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}
_TESTS_OF_CPUS = ("test_compile.py", "test_cpu_", "test_benchmarks.py", "test_roofline.py", "test_measurement.py")


def environment(*, is_dry: bool) -> dict[str, Any]:
    """Versions and the device."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    with contextlib.suppress(ImportError):
        import triton

        found["triton"] = triton.__version__
    found["ok"] = torch.cuda.is_available() or is_dry
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "memory_bytes": properties.total_memory}
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["free_bytes"] = torch.cuda.mem_get_info()[0]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            query = [
                "nvidia-smi",
                "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit",
                "--format=csv,noheader",
            ]
            found["nvidia_smi"] = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    return found


def kernels(*, is_dry: bool) -> dict[str, Any]:
    """One norm, compiled and compared."""
    from forebay_kernels import implementation_of, reference, rms_norm

    device = torch.device("cpu" if is_dry else "cuda")
    x = torch.randn(8, 1024, device=device, dtype=torch.bfloat16)
    weight = torch.randn(1024, device=device, dtype=torch.bfloat16)
    with _kernels(is_dry=is_dry):
        started = time.perf_counter()
        found = rms_norm(x, weight, 1e-6)
        seconds = time.perf_counter() - started
        implementation = implementation_of(device)["rms_norm"]
    torch.testing.assert_close(found, reference.rms_norm(x, weight, 1e-6), rtol=2.0**-6, atol=1e-2)
    return {"implementation": implementation, "first_call_seconds": round(seconds, 3)}


def tests(*, is_dry: bool) -> dict[str, Any]:
    """Every kernel against its definition; on a GPU not in the interpreter."""
    folder = Path("tests/test_kernels")
    files = [str(file) for file in sorted(folder.glob("test_*.py")) if not file.name.startswith(_TESTS_OF_CPUS)]
    chosen = [str(folder / "test_rms_norm.py"), "-k", "empty"] if is_dry else [*files, "--maxfail=40"]
    if not is_dry and find_spec("xdist") is not None:
        chosen += ["-n", "8"]  # while one test computes, others compile
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"ok": done.returncode == 0, "summary": lines[-1] if lines else done.stderr[-500:], "failed": failed[:40]}


def nano(*, is_dry: bool) -> dict[str, Any]:
    """Output tokens a second of the workload of nano-vllm's benchmark."""
    return _nano("auto", is_dry=is_dry)


def nano_int8_cache(*, is_dry: bool) -> dict[str, Any]:
    """The same with a cache of 8 bits."""
    return _nano("int8", is_dry=is_dry)


def latency(*, is_dry: bool) -> dict[str, Any]:
    """Milliseconds per token of one sequence."""
    with _engine(1, "auto", is_dry=is_dry) as (engine, facts):
        bench = EngineBench(engine, facts.model_config.vocab_size, seed=0)
        sizes = (4, 3) if is_dry else (128, 256)
        bench.decode(1, *sizes, repetitions=1)  # captures
        figure = bench.decode(1, *sizes, repetitions=2)
    return {"milliseconds_per_token": figure.step_milliseconds, **asdict(figure)}


def roofline(*, is_dry: bool) -> dict[str, Any]:
    """`forebay bench kernels`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.json"
        options = ["--json", str(file), "--num-tokens", *(["64"] if is_dry else ["16", "256", "4096"])]
        with contextlib.redirect_stdout(sys.stderr):
            status = bench_kernels([*options, "--seconds", "0.05"])
        told: dict[str, Any] = json.loads(file.read_text())
    return {"ok": status == 0, "measured": told["measured"], "figures": told["figures"]}


RUN: dict[str, Callable[..., dict[str, Any]]] = {
    "environment": environment,
    "kernels": kernels,
    "tests": tests,
    "nano": nano,
    "nano-int8-cache": nano_int8_cache,
    "latency": latency,
    "roofline": roofline,
}


def nano_requests(*, is_dry: bool) -> list[AddRequest]:
    """The requests: random tokens, temperature 0.6, answers that end at their length only.

    Drawn in the order of nano-vllm's bench.py with seed 0, so the lengths are its own: 133,966 output tokens.
    """
    generator = random.Random(0)
    count, shortest, longest, num_tokens = (3, 2, 6, 300) if is_dry else (256, 100, 1024, 10_000)
    prompts = [
        [generator.randint(0, num_tokens) for _ in range(generator.randint(shortest, longest))] for _ in range(count)
    ]
    lengths = [generator.randint(shortest, longest) for _ in range(count)]
    return [
        AddRequest(
            request_id=str(index),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=length, temperature=0.6, ignore_eos=True, seed=index),
        )
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def _nano(kv_cache_dtype: str, *, is_dry: bool) -> dict[str, Any]:
    """Twice: the first run captures graphs and compiles what is left, the second is what a warm server does."""
    requests = nano_requests(is_dry=is_dry)
    output_tokens = sum(request.sampling.max_tokens for request in requests)
    with _engine(len(requests), kv_cache_dtype, is_dry=is_dry) as (engine, facts):
        seconds = []
        for _ in range(2):
            engine.scheduler.reset_prefix_cache()
            started = time.perf_counter()
            served = _serve(engine, requests)
            seconds.append(time.perf_counter() - started)
        memory = torch.cuda.max_memory_allocated() if facts.device.type == "cuda" else None
    return {
        "ok": served == output_tokens,
        "output_tokens": served,
        "tokens_per_second": served / seconds[1],
        "tokens_per_second_cold": served / seconds[0],
        "seconds": seconds,
        "max_memory_allocated": memory,
        "computed_by": facts.computed_by,
    }


def _serve(engine: Engine, requests: list[AddRequest]) -> int:
    """Serve all at once; returns the tokens of the answers."""
    for request in requests:
        engine.add(request)
    num_tokens = 0
    while engine.has_work:
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(f"request {output.request_id}: {output.error}")
            num_tokens += len(output.token_ids)
    return num_tokens


@contextlib.contextmanager
def _engine(num_seqs: int, kv_cache_dtype: str, *, is_dry: bool) -> Iterator[tuple[Engine, EngineFacts]]:
    """A warm engine with random weights of Qwen3-0.6B's shape."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name, _kernels(is_dry=is_dry):
        folder = Path(name)
        config_file = folder / "shape.json"
        config_file.write_text(json.dumps(TINY if is_dry else QWEN3_06B))
        options: dict[str, Any] = {
            "device": "cpu" if is_dry else "cuda",
            "dtype": "float32" if is_dry else "bfloat16",
            "kv_cache_dtype": kv_cache_dtype,
            "max_model_len": 32 if is_dry else 4096,
            "max_num_seqs": num_seqs,
            "max_num_batched_tokens": 32 if is_dry else 16384,
            "kv_cache_tokens": 32 * num_seqs if is_dry else 2176 * num_seqs,
        }
        model = write_random_checkpoint(config_file, folder, seed=0)
        engine, facts = load_engine(EngineConfig(model=str(model), **options))
        warm_up(engine, facts)
        yield engine, facts
        engine.close()


def _kernels(*, is_dry: bool) -> contextlib.AbstractContextManager[None]:
    return interpreted_on_cpu() if is_dry else contextlib.nullcontext()
