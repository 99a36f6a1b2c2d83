"""What each part does; runs in a process of its own. In a dry run: tiny, on a CPU, kernels in Triton's interpreter."""

import contextlib
import json
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from forebay_kernels.dispatch import KERNELS, interpreted_on_cpu
from forebay_kernels.measurement import figures, gpu_of
from forebay_kernels.shapes import MODEL_SHAPES
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
SMALL: dict[str, Any] = TINY | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
}
_NEEDED = ("triton", "numpy", "msgspec", "llguidance", "safetensors", "tokenizers", "tqdm", "pytest", "hypothesis")
"""What the parts import; a machine without a network is given what it lacks in a folder that PYTHONPATH names."""
_OUTCOMES = ("PASSED", "FAILED", "ERROR", "SKIPPED")
_TESTS_OF_CPUS = ("test_compile.py", "test_cpu_", "test_benchmarks.py", "test_roofline.py", "test_measurement.py")


def tell(result: dict[str, Any]) -> None:
    """Print a part's result as far as it is known: what was told last counts, also when the part is stopped."""
    print(json.dumps(result), flush=True)


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
    found["missing"] = [name for name in _NEEDED if find_spec(name) is None]
    found["compiler"] = next(filter(None, map(shutil.which, ("gcc", "clang"))), None)
    found["ok"] = (torch.cuda.is_available() or is_dry) and not found["missing"]
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
    chosen = [str(folder / "test_rms_norm.py"), "-k", "eps_keeps"] if is_dry else [*files, "--maxfail=40"]
    if not is_dry and find_spec("xdist") is not None:
        chosen += ["-n", "8"]  # while one test computes, others compile
    configuration = ["-c", "hack/gpu_check/pytest.ini", "--rootdir", "."]
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", *configuration, *chosen]
    tail: deque[str] = deque(maxlen=60)
    counts, failed = dict.fromkeys(_OUTCOMES, 0), list[str]()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as run:
        for line in run.stdout or ():
            tail.append(line.rstrip())
            if "::" not in line or line.startswith(_OUTCOMES):  # those are the summary's
                continue
            for outcome in set(_OUTCOMES).intersection(line.split()):
                counts[outcome] += 1
                if outcome in ("FAILED", "ERROR"):
                    failed.append(line.strip()[:300])
                tell({"ok": False, "summary": "was not done", "counts": counts, "failed": failed[:40]})
    is_done = run.returncode == 0 and counts["PASSED"] > 0
    result: dict[str, Any] = {"ok": is_done, "summary": tail[-1] if tail else "", "counts": counts}
    return result | {"failed": failed[:40]} | ({} if is_done else {"tail": list(tail)})


def nano(*, is_dry: bool) -> dict[str, Any]:
    """Output tokens a second of the workload of nano-vllm's benchmark."""
    return _nano("auto", is_dry=is_dry)


def nano_int8_cache(*, is_dry: bool) -> dict[str, Any]:
    """The same with a cache of 8 bits."""
    return _nano("int8", is_dry=is_dry)


def answers(*, is_dry: bool) -> dict[str, Any]:
    """Greedy answers of this device, with and without overlap, beside those of torch operators on the CPU."""
    result: dict[str, Any] = {"ok": False}
    shape = TINY if is_dry else SMALL
    with _engine(4, "auto", shape, "float32", is_dry=is_dry) as (engine, facts):
        result["computed_by"] = facts.computed_by
        for name in ("overlapping", "one_at_a_time"):
            engine.overlaps = name == "overlapping"
            result[name] = _answers(engine, shape["vocab_size"], 2 if is_dry else 32)
            tell(result)
    with _engine(4, "auto", shape, "float32", is_dry=is_dry, on_host=True) as (engine, _):
        result["on_host"] = _answers(engine, shape["vocab_size"], 2 if is_dry else 32)
    # float32 products are rounded to fewer bits on GPUs, so that a near tie may be decided otherwise
    pairs = {name: zip(result[name], result["on_host"], strict=True) for name in ("overlapping", "one_at_a_time")}
    result["first_tokens_as_on_host"] = {
        name: sum(one[:1] == other[:1] for one, other in found) for name, found in pairs.items()
    }
    is_right = min(result["first_tokens_as_on_host"].values()) >= 3
    same = sum(one == other for one, other in zip(result["overlapping"], result["one_at_a_time"], strict=True))
    return result | {"same_with_and_without_overlap": same, "ok": is_right and same >= 3}


def latency(*, is_dry: bool) -> dict[str, Any]:
    """Milliseconds per token of one sequence."""
    with _engine(1, "auto", is_dry=is_dry) as (engine, facts):
        bench = EngineBench(engine, facts.model_config.vocab_size, seed=0)
        sizes = (4, 3) if is_dry else (128, 256)
        bench.decode(1, *sizes, repetitions=1)  # captures
        figure = bench.decode(1, *sizes, repetitions=2)
    return {"milliseconds_per_token": figure.step_milliseconds, **asdict(figure)}


def roofline(*, is_dry: bool) -> dict[str, Any]:
    """What `forebay bench kernels` measures."""
    device = torch.device("cuda") if torch.cuda.is_available() else None
    gpu = gpu_of("h200" if device is None else torch.cuda.get_device_name(device))
    shapes = [shape for shape in MODEL_SHAPES if shape.name == "llama-3-8b"]
    found: list[dict[str, Any]] = []
    for num_tokens in (64,) if is_dry else (64, 4096):  # every kernel once, before the second size
        for figure in figures(list(KERNELS), shapes, [num_tokens], gpu, device, 0.05):
            found.append(asdict(figure))
            tell({"ok": False, "measured": device is not None, "figures": found})
    is_right = not any(figure["error"] for figure in found)
    return {"ok": is_right, "measured": device is not None, "figures": found}


RUN: dict[str, Callable[..., dict[str, Any]]] = {
    "environment": environment,
    "kernels": kernels,
    "answers": answers,
    "nano": nano,
    "latency": latency,
    "nano-int8-cache": nano_int8_cache,
    "tests": tests,
    "roofline": roofline,
}


def nano_requests(*, is_dry: bool) -> list[AddRequest]:
    """The requests: random tokens, temperature 0.6, answers that end at their length only.

    Drawn in the order of nano-vllm's bench.py with seed 0, so the lengths are its own: 133,966 output tokens.
    """
    generator = random.Random(0)
    count, shortest, longest, num_tokens = (2, 2, 3, 300) if is_dry else (256, 100, 1024, 10_000)
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
    """Three times: the first run captures graphs and compiles what is left, the second is what a warm server does.

    In the third each step waits for the one before it: what overlapping them gains.
    """
    requests = nano_requests(is_dry=is_dry)
    output_tokens = sum(request.sampling.max_tokens for request in requests)
    result: dict[str, Any] = {}
    with _engine(len(requests), kv_cache_dtype, is_dry=is_dry) as (engine, facts):
        for name in ("tokens_per_second_cold", "tokens_per_second", "tokens_per_second_without_overlap"):
            engine.overlaps = not name.endswith("without_overlap")
            engine.scheduler.reset_prefix_cache()
            started = time.perf_counter()
            served = _serve(engine, requests)
            result |= {name: served / (time.perf_counter() - started), "output_tokens": served}
            result |= {"ok": served == output_tokens, "computed_by": facts.computed_by}
            if facts.device.type == "cuda":
                result["max_memory_allocated"] = torch.cuda.max_memory_allocated()
            tell(result)
    return result


def _answers(engine: Engine, vocab_size: int, num_tokens: int) -> list[list[int]]:
    """The answers to four prompts of different lengths."""
    found: dict[str, list[int]] = {}
    engine.scheduler.reset_prefix_cache()
    for index in range(4):
        prompt = [(7 * index + 31 * position) % vocab_size for position in range(3 + 5 * index)]
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
        engine.add(AddRequest(request_id=str(index), prompt_token_ids=prompt, sampling=sampling))
        found[str(index)] = []
    while engine.has_work:
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(f"request {output.request_id}: {output.error}")
            found[output.request_id] += output.token_ids
    return list(found.values())


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
def _engine(
    num_seqs: int,
    kv_cache_dtype: str,
    shape: dict[str, Any] = QWEN3_06B,
    dtype: str = "bfloat16",
    *,
    is_dry: bool,
    on_host: bool = False,
) -> Iterator[tuple[Engine, EngineFacts]]:
    """A warm engine with random weights.

    Args:
        num_seqs: that are served at once.
        kv_cache_dtype: of the engine.
        shape: of the model.
        dtype: of the engine.
        is_dry: tiny, on the CPU, kernels in the interpreter.
        on_host: on the CPU, by torch operators.
    """
    kernels = contextlib.nullcontext() if on_host else _kernels(is_dry=is_dry)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name, kernels:
        folder = Path(name)
        config_file = folder / "shape.json"
        config_file.write_text(json.dumps(TINY if is_dry else shape))
        options: dict[str, Any] = {
            "device": "cpu" if is_dry or on_host else "cuda",
            "dtype": "float32" if is_dry else dtype,
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
