"""Compiles the C++ library for CPUs: as hatchling's hook when the project is built or installed, or by hand.

`python hack/build_library.py` does nothing when the libraries are up to date. Without a compiler there are none, and
the engine computes with torch operators: slower, but right.
"""

import concurrent.futures
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatchling.builders.config import BuilderConfig
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    Hook = BuildHookInterface[BuilderConfig]
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface as Hook
    except ImportError:  # by hand, without the build backend
        Hook = object

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("kernels/forebay_kernels/cpu")
STAMP = "sources.sha256"

COMMON_FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-shared", "-s", "-pthread"),
    *("-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-uninitialized"),
    *("-mavx2", "-mfma", "-mf16c"),
)
"""No contraction: every variant shall round where the source says so. The silenced warnings are GCC's own headers'."""

_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
VARIANT_FLAGS = {
    "avx2": (),
    "avxvnni": ("-mavxvnni",),
    "avx512vnni": _AVX512,
    "avx512bf16": (*_AVX512, "-mavx512bf16"),
    "amx": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-int8"),
}
"""The variants that `forebay_kernels.cpu.library` chooses from."""

TEST_FLAGS = {"amx_emulated": (*_AVX512, "-DFOREBAY_EMULATED_TILES", "-O1")}
"""Variants for tests alone: they are in no wheel."""


class LibraryHook(Hook):
    """Puts the libraries into the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling's `BuildHookInterface.initialize`."""
        if build(Path(self.root)):
            build_data["artifacts"].extend(f"{PACKAGE}/libraries/forebay_{variant}.so" for variant in VARIANT_FLAGS)
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def build(root: Path) -> list[Path]:
    """Compile what is not up to date.

    Args:
        root: of the source tree.

    Returns:
        The libraries; none on processors other than x86-64, and without a compiler or an earlier result.

    Raises:
        SystemExit: the compiler failed; its messages are on stderr.
    """
    folder = root / PACKAGE / "libraries"
    folder.mkdir(exist_ok=True)  # a Dockerfile copies it, empty or not
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return []
    flags = {**VARIANT_FLAGS, **TEST_FLAGS}
    outputs = [folder / f"forebay_{variant}.so" for variant in flags]
    wanted = _digest(root)
    stamp = folder / STAMP
    if all(path.is_file() for path in outputs) and stamp.is_file() and stamp.read_text() == wanted:
        return outputs
    compiler = find_compiler()
    if compiler is None:
        for path in outputs:  # of other sources
            path.unlink(missing_ok=True)
        print("no C++ compiler found: the engine will compute on CPUs with torch operators, slowly", file=sys.stderr)
        return []
    stamp.unlink(missing_ok=True)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        list(executor.map(lambda variant: _compile(compiler, root, variant, flags[variant]), flags))
    stamp.write_text(wanted)
    return outputs


def find_compiler() -> str | None:
    """The path of $CXX, g++, clang++ or c++, whichever comes first."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((path for path in map(shutil.which, filter(None, names)) if path), None)


def _compile(compiler: str, root: Path, variant: str, flags: tuple[str, ...]) -> None:
    target = root / PACKAGE / "libraries" / f"forebay_{variant}.so"
    staged = target.with_suffix(f".{os.getpid()}")  # a running engine keeps the file that it has mapped
    source = root / PACKAGE / "source" / "library.cpp"
    command = [compiler, *COMMON_FLAGS, *flags, str(source), "-o", str(staged)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        staged.unlink(missing_ok=True)
        raise SystemExit(f"{' '.join(command)}\nfailed with exit code {done.returncode}:\n{done.stderr}")
    staged.replace(target)


def _digest(root: Path) -> str:
    """Changes when a library would."""
    digest = hashlib.sha256()
    for path in [*sorted((root / PACKAGE / "source").iterdir()), Path(__file__)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    build(ROOT)
