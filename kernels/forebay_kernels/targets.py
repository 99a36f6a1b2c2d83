"""The GPUs that the kernels are compiled for, and the traits by which launches choose their tiles."""

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to compile for."""

    backend: str
    """Triton's name of the compiler: cuda or hip."""
    arch: int | str
    """Compute capability times ten, or AMD's gfx name."""
    warp_size: int
    max_shared_bytes: int
    """Shared memory that one block may have. CUDA C++ programming guide, table of technical specifications per
    compute capability; AMD CDNA 3 instruction set guide, local data share."""

    shared_bytes_of_multiprocessor: int = 64 * 1024
    """What the programs that one multiprocessor runs at a time share. Sources as above."""
    max_warps: int = 32
    """Warps that one multiprocessor holds at a time. Sources as above."""

    @property
    def multiplies_fp8(self) -> bool:
        """Whether its matrix units take float8_e4m3fn: NVIDIA's from Ada on. CDNA 3 has another 8-bit format."""
        return isinstance(self.arch, int) and self.arch >= 89


TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 * 1024, 164 * 1024, 64),
    "sm_89": Target("cuda", 89, 32, 99 * 1024, 100 * 1024, 48),
    "sm_90": Target("cuda", 90, 32, 227 * 1024, 228 * 1024, 64),
    "sm_100": Target("cuda", 100, 32, 227 * 1024, 228 * 1024, 64),
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024, 64 * 1024, 32),
}
"""A100; L4, L40S; H100, H200; B200; MI300X."""


@cache
def target_of(device: torch.device) -> Target:
    """Return the traits of the GPU that holds a tensor; of sm_90 where there is none, for Triton's interpreter."""
    if device.type not in ("cuda", "hip"):
        return TARGETS["sm_90"]
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return Target("hip", properties.gcnArchName.split(":")[0], properties.warp_size, 64 * 1024)
    arch = 10 * properties.major + properties.minor
    return Target("cuda", arch, properties.warp_size, properties.shared_memory_per_block_optin)
