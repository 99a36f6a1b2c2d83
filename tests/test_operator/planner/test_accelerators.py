"""The catalogue of accelerators is complete and sensible, and nodes are recognised by their labels."""

import re

import pytest

from forebay_operator.catalogue.accelerators import accelerators, recognise
from forebay_operator.catalogue.models import known_model_names
from tests.test_operator.planner.questions import facts_of

NAMES = [
    "t4-16gb",
    "a10g-24gb",
    "l4-24gb",
    "l40s-48gb",
    "rtx4090-24gb",
    "rtx5090-32gb",
    "a100-40gb",
    "a100-80gb",
    "h100-pcie-80gb",
    "h100-80gb",
    "h200-141gb",
    "b200-180gb",
    "gb200-186gb",
    "mi300x-192gb",
    "mi325x-256gb",
    "cpu",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_promised_accelerator_is_there_with_its_source(name: str) -> None:
    profile = accelerators()[name]
    assert profile.source
    assert profile.native
    assert profile.price_cents_per_hour[0] <= profile.price_cents_per_hour[1]
    assert profile.peak_flops[profile.dtype_format] > 0
    assert set(profile.native).isdisjoint(profile.dequantized)


@pytest.mark.parametrize("name", [name for name in accelerators() if name != "cpu"])
def test_usable_memory_is_a_little_less_than_the_name_says_or_the_gib_it_stands_for(name: str) -> None:
    named = int(re.findall(r"-(\d+)gb$", name)[0])
    memory = accelerators()[name].memory_bytes
    assert named * 10**9 * 0.95 < memory < named * 2**30


def test_native_fp8_begins_with_ada_and_hopper() -> None:
    native = {name for name, profile in accelerators().items() if profile.support("fp8") == "native"}
    assert {"l4-24gb", "l40s-48gb", "h100-80gb", "h200-141gb", "b200-180gb", "mi300x-192gb"} <= native
    assert accelerators()["a100-80gb"].support("fp8") == "dequantized"
    assert accelerators()["t4-16gb"].support("fp8") == "none"


def test_the_cpu_offers_only_what_the_engine_serves_there() -> None:
    cpu = accelerators()["cpu"]
    assert (cpu.native, cpu.dequantized, cpu.gpus_per_node) == (("bf16", "float32", "int8"), ("int4",), 1)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}, "h100-80gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, "a100-40gb"),
        ({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}, "t4-16gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-L40S"}, "l40s-48gb"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "mi300x-192gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}, None),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "9728"}, None),
        ({"nvidia.com/gpu.product": "Unheard-Of"}, None),
        ({"kubernetes.io/arch": "amd64"}, None),
    ],
)
def test_nodes_are_recognised_by_product_and_memory(labels: dict[str, str], expected: str | None) -> None:
    profile = recognise(labels)
    assert (profile.name if profile else None) == expected


def test_no_label_means_two_accelerators() -> None:
    labels = [label for profile in accelerators().values() for label in profile.labels]
    assert len(labels) == len(set(labels))


def test_the_catalogue_of_models_is_large_enough_to_be_useful() -> None:
    assert len({facts_of(name).num_parameters for name in known_model_names()}) >= 25
