"""The product as a user gets it: chart on the embedded cluster, model on a volume, one service that is Ready."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from hack.install import ensure_namespace, install_operator
from hack.kube import ROOT, get, kubectl, list_objects, wait_until
from tests.e2e.cluster import NAMESPACE, Service, apply_example, wait_for_condition


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "e2e":
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def namespace() -> Iterator[str]:
    """A fresh namespace that enforces restricted pods, with the model's claim in it, under an installed operator."""
    install_operator()
    delete_namespace()
    ensure_namespace(NAMESPACE)
    subprocess.run([sys.executable, "-m", "hack.model", "--namespace", NAMESPACE], cwd=ROOT, check=True)
    yield NAMESPACE
    delete_namespace()


def delete_namespace() -> None:
    """Delete the namespace and wait; its pods first, or Kubernetes waits half of their long grace period."""
    if get("namespace", NAMESPACE, NAMESPACE) is None:
        return
    kubectl("delete", "infsvc", "--all", "-n", NAMESPACE, "--wait=true")
    wait_until("the last pod to go", lambda: not list_objects("pods", NAMESPACE), 120)
    kubectl("delete", "namespace", NAMESPACE, "--timeout=5m", timeout=330)


@pytest.fixture(scope="session")
def smollm2(namespace: str) -> Service:
    """The example service, Ready."""
    apply_example("smollm2-cpu.yaml", namespace)
    wait_for_condition("smollm2", "Ready", "True", seconds=600)
    return Service(namespace, "smollm2")
