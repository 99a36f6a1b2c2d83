"""The admission webhook through its Service and certificate: refuses what cannot fit, blocks nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.install import OPERATOR_NAMESPACE, install_operator
from hack.kube import ROOT, ToolError, apply, get, kubectl, wait_until
from tests.e2e.cluster import example, wait_for_condition
from tests.smollm2 import smollm2_gguf

OPERATOR = "deployment/forebay-operator"
TOO_MUCH = {"kvBudget": {"concurrentSequences": 256}, "context": {"maxModelLen": 8192}}


@pytest.fixture(scope="module")
def webhook(namespace: str) -> Iterator[str]:
    """The operator with its webhook, and one service whose model it has looked at."""
    install_operator("webhook.enabled=true")
    apply(service("looked-at"), namespace)
    wait_for_condition("looked-at", "PlanFeasible", "True", seconds=180)
    yield namespace
    kubectl("delete", "infsvc", "looked-at", "-n", namespace)
    install_operator()


def service(name: str, **changes: Any) -> dict[str, Any]:
    """A service of which nothing runs: a plan is all that is wanted."""
    manifest = example("smollm2-cpu.yaml", replicas=0, **changes)
    manifest["metadata"]["name"] = name
    return manifest


def refusal(manifest: dict[str, Any], namespace: str) -> str:
    with pytest.raises(ToolError) as refused:
        apply(manifest, namespace)
    return " ".join(str(refused.value).split())


def test_what_cannot_fit_is_refused_at_apply_with_the_text_of_forebay_plan(webhook: str, tmp_path: Path) -> None:
    manifest = service("too-much", **TOO_MUCH)
    told = refusal(manifest, webhook)
    assert get("infsvc", "too-much", webhook) is None
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(manifest))
    command = [
        sys.executable,
        "-m",
        "forebay_cli",
        "plan",
        "-f",
        str(path),
        "--model",
        str(smollm2_gguf()),
        "-o",
        "json",
    ]
    plan = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "server", check=False)
    assert plan.returncode == 1, plan.stderr
    answer = json.loads(plan.stdout)
    assert f"{answer['reason']}: {answer['message']}" in told
    assert f"would fit: {answer['suggestions'][0]}" in told


def test_a_change_that_cannot_fit_is_refused_and_changes_nothing(webhook: str) -> None:
    assert "DoesNotFit" in refusal(service("looked-at", **TOO_MUCH), webhook)
    kept = get("infsvc", "looked-at", webhook)
    assert kept is not None
    assert kept["spec"]["kvBudget"] != TOO_MUCH["kvBudget"]


def test_scaling_metadata_and_what_fits_pass(webhook: str) -> None:
    kubectl("annotate", "infsvc", "looked-at", "team=a", "--overwrite", "-n", webhook)
    kubectl("scale", "infsvc", "looked-at", "--replicas=0", "-n", webhook)
    apply(service("looked-at", context={"maxModelLen": 1024}), webhook)


def test_nobody_is_blocked_while_the_operator_is_away_nor_by_what_got_in(webhook: str) -> None:
    kubectl("scale", OPERATOR, "--replicas=0", "-n", OPERATOR_NAMESPACE)
    selector = "app.kubernetes.io/name=forebay"
    kubectl("wait", "pod", "--for=delete", "-l", selector, "-n", OPERATOR_NAMESPACE, "--timeout=60s")
    try:
        apply(service("got-in", **TOO_MUCH), webhook)
    finally:
        kubectl("scale", OPERATOR, "--replicas=1", "-n", OPERATOR_NAMESPACE)
        kubectl("rollout", "status", OPERATOR, "-n", OPERATOR_NAMESPACE, "--timeout=120s")
    seen = wait_for_condition("got-in", "PlanFeasible", "False", seconds=60)
    assert seen["reason"] == "DoesNotFit"
    kubectl("label", "infsvc", "got-in", "team=b", "-n", webhook)
    kubectl("delete", "infsvc", "got-in", "-n", webhook, "--timeout=60s")
    wait_until("the service to go", lambda: get("infsvc", "got-in", webhook) is None, 30)
