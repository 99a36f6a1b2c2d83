"""The spec of an AcceleratorProfile: what one kind of accelerator can do, and how pods reach it."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from forebay_operator.api.common import ApiModel, Labels, Quantity, Toleration, rule

NumberFormat = Literal["float32", "bf16", "fp16", "fp8", "int8", "int4", "fp4", "mxfp4", "nvfp4"]
Formats = Annotated[tuple[NumberFormat, ...], Field(max_length=12)]
PositiveInt64 = Annotated[int, Field(ge=1, le=2**62)]


class Price(ApiModel):
    """What one accelerator costs in an hour, in US cents."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": rule("self.low <= self.high", "low must not be above high")
    }

    low: Annotated[int, Field(ge=0, le=10_000_000)]
    """Lowest usual price."""
    high: Annotated[int, Field(ge=0, le=10_000_000)]
    """Highest usual price."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class AcceleratorProfileSpec(ApiModel):
    """What one kind of accelerator can do."""

    memory: Quantity
    """What a program can use, not what is marketed."""
    bandwidth_bytes_per_second: PositiveInt64
    """Of the accelerator's memory."""
    peak_flops: Annotated[dict[NumberFormat, PositiveInt64], Field(min_length=1, max_length=12)]
    """Dense operations a second by number format."""
    native: Annotated[tuple[NumberFormat, ...], Field(min_length=1, max_length=12)]
    """Formats that the hardware multiplies."""
    dequantized: Formats = ()
    """Formats that are only stored so, and converted to multiply."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 8
    """Accelerators of a node: the bound of tensor parallelism."""
    link_domain: Annotated[int, Field(ge=1, le=1024)] = 1
    """Accelerators that reach one another over a fast link."""
    link_bytes_per_second: Annotated[int, Field(ge=0, le=2**62)] = 0
    """One direction, one accelerator, over that link."""
    price_cents_per_hour: Price | None = None
    """For estimates of cost; absent: none are made."""
    device: Literal["cuda", "rocm"] = "cuda"
    """What the engine calls it."""
    resource_name: Annotated[
        str,
        StringConstraints(
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317
        ),
    ] = "nvidia.com/gpu"
    """The name that Kubernetes counts it by."""
    node_selector: Labels | None = None
    """Labels of the nodes that have it; they bind a plan to its hardware."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] | None = None
    """Taints of those nodes."""
