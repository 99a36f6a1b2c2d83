"""AcceleratorProfile: what one kind of accelerator can hold and do."""

from dataclasses import dataclass
from typing import Literal

FormatSupport = Literal["native", "dequantized", "none"]
"""native: the hardware multiplies these numbers. dequantized: only stored so, converted to 16 bits to multiply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorProfile:
    """One entry of the catalogue, or of an AcceleratorProfile object in the cluster."""

    name: str
    """Model and memory in lower case: `h100-80gb`."""
    memory_bytes: int
    """What a program can use, not what is marketed; 0 for `cpu`: the spec says it."""
    bandwidth_bytes_per_second: int
    peak_flops: dict[str, int]
    """Dense operations a second by number format: bf16, fp16, fp8, int8, fp4; a missing format is not native."""
    native: tuple[str, ...]
    """Formats that the hardware multiplies."""
    dequantized: tuple[str, ...] = ()
    """Formats that are stored so, and converted to multiply."""
    gpus_per_node: int = 8
    """GPUs of a usual node."""
    link_domain: int = 1
    """Accelerators that reach one another over a fast link (NVLink, Infinity Fabric)."""
    link_bytes_per_second: int = 0
    """One direction, one accelerator, over that link, or over PCIe."""
    price_cents_per_hour: tuple[int, int] = (0, 0)
    """US cents for one accelerator and hour: lowest and highest usual price."""
    device: Literal["cuda", "rocm", "cpu"] = "cuda"
    resource_name: str = "nvidia.com/gpu"
    """The name that Kubernetes counts it by; empty for `cpu`."""
    labels: tuple[str, ...] = ()
    """Values of the node label `nvidia.com/gpu.product` (or AMD's) that mean this accelerator."""
    source: str = ""
    """Where the numbers are from."""

    def support(self, number_format: str) -> FormatSupport:
        """How well the accelerator can serve weights or KV of a format."""
        if number_format in self.native:
            return "native"
        return "dequantized" if number_format in self.dequantized else "none"

    @property
    def dtype_format(self) -> Literal["bf16", "fp16"]:
        """The 16-bit format that it multiplies: T4 and its like have no bf16."""
        return "bf16" if "bf16" in self.native else "fp16"
