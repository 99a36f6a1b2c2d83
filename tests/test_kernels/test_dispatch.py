import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import forebay_kernels
from forebay_kernels import implementation_of, reference
from forebay_kernels.dispatch import KERNELS, implementation

PACKAGE_ROOT = Path(forebay_kernels.__file__).parents[1]


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", "torch"), ("cuda", "triton"), ("cuda:1", "triton"), (torch.device("hip"), "triton"), ("meta", "torch")],
)
def test_gpus_get_triton_and_everything_else_torch(device: torch.device | str, expected: str) -> None:
    assert implementation_of(device) == dict.fromkeys(KERNELS, expected)


@pytest.mark.parametrize("name", KERNELS)
def test_each_kernel_has_both_implementations_with_the_same_arguments(name: str) -> None:
    on_cpu, on_gpu = implementation(name, "cpu"), implementation(name, "cuda")
    assert on_cpu is getattr(reference, name)
    assert on_gpu is getattr(importlib.import_module(KERNELS[name].gpu_module), name)
    public = getattr(forebay_kernels, name)
    assert inspect.signature(on_cpu) == inspect.signature(on_gpu) == inspect.signature(public)


def test_the_public_names_are_the_kernels_and_stay_functions_when_the_kernel_files_are_imported() -> None:
    for kernel in KERNELS.values():
        importlib.import_module(kernel.gpu_module)
    assert set(forebay_kernels.__all__) == {*KERNELS, "implementation_of"}
    assert all(inspect.isfunction(getattr(forebay_kernels, name)) for name in forebay_kernels.__all__)


def test_an_unknown_kernel_is_an_error() -> None:
    with pytest.raises(KeyError, match="no_such_kernel"):
        implementation("no_such_kernel", "cpu")


def test_a_cpu_never_imports_triton() -> None:
    program = (
        "import sys, torch, forebay_kernels as k\n"
        "x = torch.ones(2, 8)\n"
        "k.rms_norm(x, torch.ones(8), 1e-5); k.add_rms_norm(x, x, torch.ones(8), 1e-5); k.silu_and_mul(x)\n"
        "k.rotary(x[:, None], x[:, None], torch.arange(2), torch.ones(2, 8))\n"
        "k.implementation_of('cuda')\n"
        "sys.exit('triton was imported' if 'triton' in sys.modules else 0)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(PACKAGE_ROOT)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_gpu_tensor_is_given_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    x, weight = torch.ones(2, 8, device="cuda"), torch.ones(8, device="cuda")
    monkeypatch.setattr(reference, "rms_norm", None)
    torch.testing.assert_close(forebay_kernels.rms_norm(x, weight, 0.0), x)
