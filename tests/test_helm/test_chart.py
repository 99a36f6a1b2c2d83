"""The chart renders what a careful cluster accepts, and refuses values that it does not know."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from forebay_operator.settings import settings_from
from tests.test_helm.chart import CHART, KUBERNETES, ROOT, only, refusal, render, render_text, run_helm

GOLDEN = ROOT / "tests" / "test_helm" / "golden"
WITHOUT_CRDS = "crds.install=false"


def test_lint_finds_nothing() -> None:
    done = run_helm("lint", str(CHART), "--strict", "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("default", [WITHOUT_CRDS]),
        ("namespaced", [WITHOUT_CRDS, "watchNamespaces={team-a,team-b}"]),
    ],
)
def test_output_is_as_reviewed(name: str, settings: list[str]) -> None:
    golden = GOLDEN / f"{name}.yaml"
    options = " ".join(f"--set '{setting}'" for setting in settings)
    command = f"helm template forebay helm/forebay -n forebay-system --kube-version {KUBERNETES} {options} > {golden}"
    assert render_text(*settings) == golden.read_text(encoding="utf-8"), f"if the change is meant: {command}"


def test_definitions_are_those_of_the_repository_and_survive_uninstall() -> None:
    rendered = {m["metadata"]["name"]: m for m in render() if m["kind"] == "CustomResourceDefinition"}
    files = sorted((ROOT / "crds").glob("*.yaml"))
    assert len(files) == len(rendered) == 2
    for file in files:
        source = yaml.safe_load(file.read_text(encoding="utf-8"))
        definition = rendered[source["metadata"]["name"]]
        annotations = definition["metadata"].pop("annotations")
        assert annotations == {"helm.sh/resource-policy": "keep"}
        assert definition == source, f"cp crds/{file.name} helm/forebay/files/crds/ (`make crds` does)"


def test_definitions_can_be_left_out() -> None:
    assert not [m for m in render(WITHOUT_CRDS) if m["kind"] == "CustomResourceDefinition"]


def test_versions_are_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert f'\nversion = "{chart["appVersion"]}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert chart["version"] == chart["appVersion"]


def pod_of(*settings: str) -> dict[str, Any]:
    template: dict[str, Any] = only(render(WITHOUT_CRDS, *settings), "Deployment")["spec"]["template"]
    return template


def environment_of(*settings: str) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in pod_of(*settings)["spec"]["containers"][0]["env"]}


def test_the_operator_reads_the_environment_that_the_chart_gives_it() -> None:
    settings = settings_from(
        environment_of(
            "image.repository=reg/op",
            "image.tag=v7",
            "image.pullPolicy=Always",
            "engine.image=reg/engine@sha256:12",
            "watchNamespaces={a,b}",
            "resyncSeconds=1000000",
            "scrapeSeconds=3",
            "workers=2",
        )
    )
    assert settings.operator_image == "reg/op:v7"
    assert settings.engine_image == "reg/engine@sha256:12"
    assert settings.image_pull_policy == "Always"
    assert settings.namespaces == ("a", "b")
    assert (settings.resync_seconds, settings.scrape_seconds, settings.workers) == (1_000_000, 3, 2)


def test_defaults_are_the_operators_own() -> None:
    given = settings_from(environment_of())
    images = {"FOREBAY_ENGINE_IMAGE": "forebay-server:0.1.0", "FOREBAY_OPERATOR_IMAGE": "forebay-operator:0.1.0"}
    assert given == settings_from(images)


def test_probes_ask_the_port_that_the_operator_listens_on() -> None:
    pod = pod_of()["spec"]
    container = pod["containers"][0]
    port = settings_from(environment_of()).health_port
    assert container["ports"] == [{"name": "health", "containerPort": port}]
    assert container["livenessProbe"]["httpGet"]["port"] == container["readinessProbe"]["httpGet"]["port"] == "health"


def test_a_digest_counts_instead_of_the_tag() -> None:
    digest = "sha256:" + "0" * 64
    pod = pod_of("image.repository=reg/op", "image.tag=v7", f"image.digest={digest}")["spec"]
    assert pod["containers"][0]["image"] == f"reg/op@{digest}"


def test_the_pod_passes_the_restricted_standard() -> None:
    pod = pod_of()["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp"}


def test_two_operators_never_run_at_once() -> None:
    spec = only(render(WITHOUT_CRDS), "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_placement_reaches_the_pod() -> None:
    pod = pod_of(
        "nodeSelector.pool=system",
        "tolerations[0].key=gpu",
        "tolerations[0].operator=Exists",
        "priorityClassName=high",
        "imagePullSecrets[0].name=pull",
        "podAnnotations.team=ml",
        "podLabels.tier=control",
        "affinity.nodeAffinity.x=1",
    )
    spec = pod["spec"]
    assert spec["nodeSelector"] == {"pool": "system"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert spec["priorityClassName"] == "high"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["affinity"] == {"nodeAffinity": {"x": 1}}
    assert pod["metadata"]["annotations"] == {"team": "ml"}
    assert pod["metadata"]["labels"]["tier"] == "control"


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("imagee.tag=1", "imagee"),
        ("image.tagg=1", "tagg"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.repository=reg/op@sha256:1", "repository"),
        ("image.digest=latest", "digest"),
        ("scrapeSeconds=0", "scrapeSeconds"),
        ("watchNamespaces={Team_A}", "watchNamespaces"),
        ("crds.keep=true", "keep"),
        ("tolerations[0].kee=x", "kee"),
        ("resources.request.cpu=1", "request"),
    ],
)
def test_unknown_or_impossible_values_are_refused_by_name(setting: str, named: str) -> None:
    assert named in refusal(WITHOUT_CRDS, setting)


def test_every_value_is_in_the_schema_and_every_object_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(values) == set(schema["properties"]) - {"global"}
    # Kubernetes' own structures are Kubernetes' to check; `global` belongs to parent charts.
    foreign = {"/global", "/affinity/nodeAffinity", "/affinity/podAffinity", "/affinity/podAntiAffinity"}
    assert {path for path, node in objects(schema) if "additionalProperties" not in node} == foreign
    assert all(node.get("additionalProperties") is not True for _, node in objects(schema))


def objects(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if node.get("type") == "object":
        yield path, node
    for name, child in node.get("properties", {}).items():
        yield from objects(child, f"{path}/{name}")
    if "items" in node:
        yield from objects(node["items"], f"{path}[]")


def test_an_old_kubernetes_is_refused() -> None:
    done = run_helm("template", "forebay", str(CHART), "--kube-version", "1.29.9")
    assert done.returncode != 0
    assert "1.30" in done.stderr
