"""The GPUs that the kernels are compiled for, and the traits by which launches choose their tiles."""

import re
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
    max_shared_bytes: int | None
    """Shared memory that one block may have. CUDA C++ programming guide, table of technical specifications per
    compute capability; AMD CDNA 3 instruction set guide, local data share. None: not known."""

    shared_bytes_of_multiprocessor: int = 64 * 1024
    """What the programs that one multiprocessor runs at a time share. Sources as above."""
    max_warps: int | None = 32
    """Warps that one multiprocessor holds at a time. Sources as above. None: not known, nor is occupancy."""

    @property
    def has_bfloat16(self) -> bool:
        """Whether its matrix units take bfloat16: NVIDIA's from Ampere on."""
        return not isinstance(self.arch, int) or self.arch >= 80

    @property
    def multiplies_fp8(self) -> bool:
        """Whether its matrix units take float8_e4m3fn: NVIDIA's from Ada on. CDNA 3 has another 8-bit format."""
        return isinstance(self.arch, int) and self.arch >= 89

    @property
    def copies_tiles(self) -> bool:
        """Whether it copies a described tile to shared memory by itself (TMA), and its matrix units read it there.

        NVIDIA's from Hopper on; not the consumer's Blackwell, sm_120, whose matrix units take it from registers.
        """
        return isinstance(self.arch, int) and self.arch >= 90 and not self.multiplies_from_registers

    @property
    def multiplies_from_registers(self) -> bool:
        """Whether matrix units take both operands from registers, which then have less room: NVIDIA's before Hopper.

        So do those of the consumer's Blackwell, sm_120; the others' read shared memory.
        """
        return isinstance(self.arch, int) and self.arch // 10 not in (9, 10, 11)


TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 * 1024, 164 * 1024, 64),
    "sm_89": Target("cuda", 89, 32, 99 * 1024, 100 * 1024, 48),
    "sm_90": Target("cuda", 90, 32, 227 * 1024, 228 * 1024, 64),
    "sm_100": Target("cuda", 100, 32, 227 * 1024, 228 * 1024, 64),
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024, 64 * 1024, 32),
}
"""A100; L4, L40S; H100, H200; B200; MI300X: those that every change is compiled for."""

_OTHERS = {
    "sm_75": Target("cuda", 75, 32, 64 * 1024, 64 * 1024, 32),
    "sm_86": Target("cuda", 86, 32, 99 * 1024, 100 * 1024, 48),
    "sm_87": Target("cuda", 87, 32, 163 * 1024, 164 * 1024, 48),
    "sm_103": Target("cuda", 103, 32, 227 * 1024, 228 * 1024, 64),
    "sm_120": Target("cuda", 120, 32, 99 * 1024, 100 * 1024, 48),
    "sm_121": Target("cuda", 121, 32, 99 * 1024, 100 * 1024, 48),
    "gfx90a": Target("hip", "gfx90a", 64, 64 * 1024, 64 * 1024, 32),
    "gfx950": Target("hip", "gfx950", 64, 160 * 1024, 160 * 1024, 32),
}
"""T4; A10, A40, RTX 30; Jetson Orin; B300; RTX 50, RTX PRO; DGX Spark; MI200; MI350."""


def target_named(name: str) -> Target:
    """Return the target of this name: one of those whose limits are known, or any that is written like one.

    Raises:
        ValueError: it is written like no GPU of NVIDIA's that Triton compiles for, and like none of AMD's.
    """
    known = (TARGETS | _OTHERS).get(name)
    if known is not None:
        return known
    if (nvidia := re.fullmatch(r"sm_(\d{2,3})", name)) and int(nvidia[1]) >= 75:
        return Target("cuda", int(nvidia[1]), 32, None, max_warps=None)
    if re.fullmatch(r"gfx[0-9]{2,3}[0-9a-f]", name):
        # 64 lanes in a wavefront up to CDNA, 32 from RDNA (gfx10) on, whose multiprocessors are made otherwise.
        is_cdna = name.startswith("gfx9")
        return Target("hip", name, 64 if is_cdna else 32, 64 * 1024, max_warps=None)
    raise ValueError(
        f"unknown target {name!r}: expected {', '.join(TARGETS)}, or another such as sm_86 (NVIDIA, from sm_75 on) or "
        "gfx90a (AMD)"
    )


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
