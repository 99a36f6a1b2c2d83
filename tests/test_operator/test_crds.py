"""The definitions are made from the types, bounded and small; the types refuse what the definitions refuse."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, Field, ValidationError

from forebay_operator.api.accelerator_profile import AcceleratorProfileSpec
from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.api.schema import NotStructuralError, structural_schema
from forebay_operator.api.status import PlanStatus
from forebay_operator.catalogue.models import known_model
from forebay_operator.cli.crds import main
from forebay_operator.crd import documents, inference_service_crd
from forebay_operator.planner import Plan
from forebay_operator.planner.plan import plan
from forebay_operator.planning import plan_request
from forebay_operator.profiles import find_profile
from tests.test_operator.world import FACTS

CRDS = Path(__file__).resolve().parents[2] / "crds"
EXAMPLES = sorted((CRDS / "examples").glob("*.yaml"))


@pytest.mark.parametrize("name", sorted(documents()))
def test_the_files_equal_what_the_types_say(name: str) -> None:
    assert (CRDS / name).read_text() == documents()[name], "run: forebay crds --output crds"


@pytest.mark.parametrize("name", sorted(documents()))
def test_the_files_stay_small_enough_for_client_side_apply(name: str) -> None:
    assert len(documents()[name].encode()) < 64 * 1024


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_field_is_described_and_structural(part: str) -> None:
    root = inference_service_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    for path, node in nodes(root):
        assert not {"$ref", "anyOf", "allOf", "title", "const"} & set(node), path
        assert "additionalProperties" not in node or "properties" not in node, path
        if not path.endswith("[]"):
            assert node.get("description"), path


def test_a_union_is_refused() -> None:
    class Bad(BaseModel):
        field: int | str

    with pytest.raises(NotStructuralError, match=r"Bad\.field: a union of 2 types"):
        structural_schema(Bad)


def test_exclusive_bounds_are_refused() -> None:
    class Bad(BaseModel):
        field: Annotated[int, Field(gt=0)]

    with pytest.raises(NotStructuralError, match="exclusiveMinimum"):
        structural_schema(Bad)


@pytest.mark.parametrize("kind", [str, list[int], dict[str, int]])
def test_what_has_no_bound_is_refused(kind: type) -> None:
    class Bad(BaseModel):
        field: kind  # type: ignore[valid-type]

    with pytest.raises(NotStructuralError, match=r"Bad\.field: a .* without max"):
        structural_schema(Bad)


def test_an_optional_field_is_one_that_is_not_required() -> None:
    class Good(BaseModel):
        field: Annotated[int, Field(ge=1)] | None = None

    assert structural_schema(Good)["properties"]["field"] == {"type": "integer", "format": "int64", "minimum": 1}


MINIMAL: dict[str, Any] = {
    "model": {"uri": "pvc://models/llama"},
    "accelerator": {"profile": "cpu", "memory": "8Gi"},
}

BAD: list[tuple[dict[str, Any], str]] = [
    ({"replica": 2}, "replica"),
    ({"replicas": -1}, "replicas"),
    ({"replicas": "many"}, "replicas"),
    ({"model": {"uri": "hf://org/model"}}, "model.uri"),
    ({"model": {"uri": "pvc://claim/../../etc/passwd"}}, "model.uri"),
    ({"model": {"uri": "pvc://Claim/x"}}, "model.uri"),
    ({"model": {}}, "model.uri"),
    ({"accelerator": {"profile": "cpu"}}, ""),
    ({"accelerator": {"profile": "l4-24gb", "memory": "8Gi"}}, ""),
    ({"parallelism": {"tensor": 0}}, "parallelism.tensor"),
    ({"parallelism": {"tensor": "some"}}, "parallelism.tensor"),
    ({"quantization": {"weights": "fp7"}}, "quantization.weights"),
    ({"quantization": {"allowed": []}}, "quantization.allowed"),
    ({"quantization": {"floor": "int3"}}, "quantization.floor"),
    ({"quantization": {"weights": "int8", "floor": "fp8"}}, "quantization"),
    ({"parallelism": {"pipeline": 0}}, "parallelism.pipeline"),
    ({"parallelism": {"pipeline": "some"}}, "parallelism.pipeline"),
    ({"context": {"maxModelLen": 0}}, "context.maxModelLen"),
    ({"kvBudget": {}}, "kvBudget"),
    ({"kvBudget": {"tokens": 4096, "memoryPercent": 50}}, "kvBudget"),
    ({"kvBudget": {"memory": "0Gi"}}, "kvBudget.memory"),
    ({"scaling": {"minReplicas": 3, "maxReplicas": 2}}, "scaling"),
    ({"scaling": {"minReplicas": 0}}, "scaling.minReplicas"),
    ({"scaling": {"scaleDownDelay": "5 minutes"}}, "scaling.scaleDownDelay"),
    ({"drain": {"timeout": ""}}, "drain.timeout"),
    ({"engine": {"extraArgs": ["--port=1"]}}, "engine"),
    ({"engine": {"extraArgs": ["--max-model-len", "4"]}}, "engine"),
    ({"podTemplate": {"env": [{"name": "1A"}]}}, "podTemplate.env.0.name"),
    ({"podTemplate": {"labels": {"a": "x" * 64}}}, "podTemplate.labels.a"),
]


@pytest.mark.parametrize(
    ("change", "path"), BAD, ids=[f"{n}-{path or 'accelerator'}" for n, (_, path) in enumerate(BAD)]
)
def test_bad_specs_are_refused_with_their_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationError) as refused:
        InferenceServiceSpec.model_validate({**MINIMAL, **change})
    paths = [".".join(str(part) for part in error["loc"]) for error in refused.value.errors()]
    assert any(found.startswith(path) for found in paths), paths


def test_the_smallest_spec_is_valid() -> None:
    assert InferenceServiceSpec.model_validate(MINIMAL).replicas == 1
    assert InferenceServiceSpec.model_validate({"model": MINIMAL["model"]}).accelerator is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"tensor": "auto", "pipeline": 1, "floor": None}),
        ({"parallelism": {"tensor": 2, "pipeline": 4}}, {"tensor": 2, "pipeline": 4}),
        ({"parallelism": {"pipeline": "auto"}}, {"pipeline": 1}),
        ({"quantization": {"floor": "fp8"}}, {"floor": "fp8", "allowed": ("bf16", "fp8", "int8")}),
        ({"quantization": {"weights": "fp16", "floor": "bf16"}}, {"weights": "fp16"}),
    ],
)
def test_wishes_reach_the_planner(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = InferenceServiceSpec.model_validate({**MINIMAL, **changes})
    profile = find_profile("cpu", {})
    assert profile is not None
    request = plan_request(spec, FACTS, profile.accelerator)
    assert {key: getattr(request, key) for key in expected} == expected


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_examples_are_valid_and_can_be_planned(example: Path) -> None:
    manifest = yaml.safe_load(example.read_text())
    assert manifest["kind"] == "InferenceService"
    spec = InferenceServiceSpec.model_validate(manifest["spec"])
    assert spec.accelerator is not None
    profile = find_profile(spec.accelerator.profile, {})
    assert profile is not None
    facts = known_model("meta-llama/Llama-3.3-70B-Instruct") if "llama" in example.name else FACTS
    assert facts is not None
    answer = plan(plan_request(spec, facts, profile.accelerator))
    assert isinstance(answer, Plan), answer
    if "llama" in example.name:
        assert answer.tensor_parallel_size > 1
    PlanStatus.model_validate(answer.to_status())


def test_tensor_sizes_that_are_no_power_of_two_are_a_rule_of_the_definition() -> None:
    spec = inference_service_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    (rule,) = spec["properties"]["parallelism"]["properties"]["tensor"]["x-kubernetes-validations"]
    assert "power of two" in rule["message"]


def test_scale_has_all_three_paths() -> None:
    scale = inference_service_crd()["spec"]["versions"][0]["subresources"]["scale"]
    assert set(scale) == {"specReplicasPath", "statusReplicasPath", "labelSelectorPath"}


def test_a_profile_needs_what_the_planner_needs() -> None:
    with pytest.raises(ValidationError, match="bandwidthBytesPerSecond"):
        AcceleratorProfileSpec.model_validate({"memory": "80Gi", "peakFlops": {"bf16": 1}, "native": ["bf16"]})


def test_the_command_writes_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path / "crds")]) == 0
    assert {path.name for path in (tmp_path / "crds").iterdir()} == set(documents())
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert [item["kind"] for item in yaml.safe_load_all(printed[printed.index("#") :])] == [
        "CustomResourceDefinition"
    ] * 2


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--output", str(tmp_path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err
