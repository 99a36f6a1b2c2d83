"""The built-in accelerators, read from `accelerators.toml`, and their recognition from node labels."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from forebay_operator.catalogue.accelerator_profile import AcceleratorProfile

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
"""Node labels that carry the accelerator's name (GPU feature discovery, AMD's node labeller)."""
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""MiB, as nvidia-smi reports it."""

MIB = 1 << 20


@cache
def accelerators() -> Mapping[str, AcceleratorProfile]:
    """All built-in profiles by name, in the catalogue's order."""
    data = tomllib.loads(files(__package__).joinpath("accelerators.toml").read_text(encoding="utf-8"))
    return MappingProxyType({name: _profile(name, entry) for name, entry in data.items()})


def recognise(labels: Mapping[str, str]) -> AcceleratorProfile | None:
    """The profile that a node's labels mean; None when they name none, or one that is not known.

    Sharing and slices (`-SHARED`, `-MIG-1g.10gb`) are not the whole accelerator: those nodes are not recognised.
    """
    product = next((labels[key] for key in PRODUCT_LABELS if key in labels), None)
    if product is None:
        return None
    for profile in accelerators().values():
        if product in profile.labels:
            return profile if _memory_agrees(profile, labels.get(MEMORY_LABEL)) else None
    return None


def _memory_agrees(profile: AcceleratorProfile, label: str | None) -> bool:
    """The label of the memory, where there is one, is within 5 % of the profile."""
    if label is None or not label.isdecimal():
        return True
    return abs(int(label) * MIB - profile.memory_bytes) * 20 <= profile.memory_bytes


def _profile(name: str, entry: dict[str, Any]) -> AcceleratorProfile:
    low, high = entry["price"]
    return AcceleratorProfile(
        name=name,
        memory_bytes=entry["memory_mib"] * MIB,
        bandwidth_bytes_per_second=entry["bandwidth"] * 10**9,
        peak_flops={number_format: round(tera * 10**12) for number_format, tera in entry["tflops"].items()},
        native=tuple(entry["native"]),
        dequantized=tuple(entry["dequantized"]),
        gpus_per_node=entry["gpus_per_node"],
        link_domain=entry["link_domain"],
        link_bytes_per_second=entry["link"] * 10**9,
        price_cents_per_hour=(round(low * 100), round(high * 100)),
        device=entry.get("device", "cuda"),
        resource_name=entry.get("resource_name", "nvidia.com/gpu"),
        labels=tuple(entry["labels"]),
        source=entry["source"],
    )
