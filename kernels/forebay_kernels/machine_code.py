"""Read registers, spills and shared memory out of compiled Triton kernels, NVIDIA's and AMD's."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_kernels.targets import Target


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program of a kernel takes from the GPU."""

    registers: int
    """Vector registers a thread, accumulation registers included on AMD."""
    spilled_bytes: int
    """Bytes of a thread's private memory (stack and local memory on NVIDIA, the private segment on AMD); our kernels
    keep no arrays there, so whatever is in it was spilled."""
    shared_bytes: int
    """Shared memory (LDS on AMD) of one program."""


def occupancy_of(resources: Resources, num_warps: int, target: Target) -> float | None:
    """Return which share of the warps that a multiprocessor could hold it holds, 0 to 1, when this kernel fills it.

    NVIDIA: 65,536 registers a multiprocessor, given out to warps by 256, and 1 KiB of shared memory beside each
    program's own (CUDA programming guide, occupancy). AMD: 512 registers a lane in each of 4 units, given out by 8.
    None where the target's limits are not known.
    """
    if target.max_warps is None:
        return None
    if target.backend == "cuda":
        registers_of_warp = -(-resources.registers * 32 // 256) * 256
        by_registers = 65536 // (registers_of_warp * num_warps)
        shared_bytes = resources.shared_bytes + 1024
    else:
        warps_of_unit = min(512 // (-(-resources.registers // 8) * 8), target.max_warps // 4)
        by_registers = 4 * warps_of_unit // num_warps
        shared_bytes = max(resources.shared_bytes, 1)
    by_shared = target.shared_bytes_of_multiprocessor // shared_bytes
    num_programs = min(by_registers, by_shared, target.max_warps // num_warps, 32)
    return num_programs * num_warps / target.max_warps


def resources_of(compiled: Any) -> Resources:
    """Return what a kernel that `triton.compile` made uses.

    Raises:
        RuntimeError: the binary's description does not have the expected form, or NVIDIA's cuobjdump, which triton
            carries, could not be run.
    """
    shared_bytes = int(compiled.metadata.shared)
    if compiled.metadata.target.backend == "cuda":
        return resources_of_cuobjdump(_cuobjdump(compiled.asm["cubin"]), shared_bytes)
    return resources_of_amdgcn(compiled.asm["amdgcn"], shared_bytes)


def resources_of_cuobjdump(report: str, shared_bytes: int) -> Resources:
    """Read the output of `cuobjdump --dump-resource-usage`. Dynamic shared memory is not in it: pass Triton's count."""
    registers, stack, local = (_number(rf"\b{name}:(\d+)", report) for name in ("REG", "STACK", "LOCAL"))
    return Resources(registers=registers, spilled_bytes=stack + local, shared_bytes=shared_bytes)


def resources_of_amdgcn(assembly: str, shared_bytes: int) -> Resources:
    """Read the metadata at the end of AMD assembly (LLVM's AMDGPU guide, "Code Object V5 Metadata")."""
    spilled_registers = _number(r"\.vgpr_spill_count: +(\d+)", assembly) + _number(
        r"\.sgpr_spill_count: +(\d+)", assembly
    )
    private_bytes = _number(r"\.private_segment_fixed_size: +(\d+)", assembly)
    return Resources(
        registers=_number(r"\.vgpr_count: +(\d+)", assembly),
        # Spilled scalars may lie in vector registers instead of memory: count each as the 4 bytes that it has.
        spilled_bytes=max(private_bytes, 4 * spilled_registers),
        shared_bytes=max(shared_bytes, _number(r"\.group_segment_fixed_size: +(\d+)", assembly)),
    )


def _cuobjdump(cubin: bytes) -> str:
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"cuobjdump ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"no {pattern!r} in the description of the compiled kernel:\n{text[-2000:]}")
    return int(found.group(1))
