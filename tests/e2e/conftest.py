"""The product as a user gets it: chart on the embedded cluster, model on a volume, one service that is Ready."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from hack.install import ensure_namespace, install_operator
from hack.kube import ROOT, kubectl
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
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=5m", timeout=330)
    ensure_namespace(NAMESPACE)
    subprocess.run([sys.executable, "-m", "hack.model", "--namespace", NAMESPACE], cwd=ROOT, check=True)
    yield NAMESPACE
    kubectl("delete", "namespace", NAMESPACE, "--timeout=5m", timeout=330)


@pytest.fixture(scope="session")
def smollm2(namespace: str) -> Service:
    """The example service, Ready."""
    apply_example("smollm2-cpu.yaml", namespace)
    wait_for_condition("smollm2", "Ready", "True", seconds=600)
    return Service(namespace, "smollm2")
