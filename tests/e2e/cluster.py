"""What the end-to-end tests say to the cluster: a service, its pods and its probes."""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import openai
import yaml

from hack.demo.chat import service_url
from hack.kube import ROOT, apply, condition, get, list_objects, wait_until

NAMESPACE = "forebay-e2e"
OPS_PORT = 8001


@dataclass(frozen=True, slots=True)
class Service:
    """One InferenceService and what belongs to it."""

    namespace: str
    name: str

    @property
    def resource(self) -> dict[str, Any]:
        found = get("infsvc", self.name, self.namespace)
        assert found is not None
        return found

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.resource["status"])

    @property
    def pods(self) -> list[dict[str, Any]]:
        pods = list_objects("pods", self.namespace, self.status["selector"])
        return [p for p in pods if "deletionTimestamp" not in p["metadata"]]

    @property
    def pod_ips(self) -> list[str]:
        return [p["status"]["podIP"] for p in self.pods if p["status"].get("podIP")]

    def client(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(
            base_url=service_url(self.namespace, self.name), api_key=api_key, timeout=300, max_retries=0
        )

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=service_url(self.namespace, self.name), api_key="none", timeout=300, max_retries=0
        )


def example(name: str, **changes: Any) -> dict[str, Any]:
    """An example of crds/examples with `spec` fields replaced."""
    manifest = dict(yaml.safe_load((ROOT / "crds" / "examples" / name).read_text()))
    manifest["spec"] = {**manifest["spec"], **changes}
    return manifest


def apply_example(name: str, namespace: str, rename: str | None = None, **changes: Any) -> None:
    manifest = example(name, **changes)
    if rename is not None:
        manifest["metadata"]["name"] = rename
    apply(manifest, namespace)


def wait_for_condition(name: str, kind: str, status: str, seconds: float, reason: str | None = None) -> dict[str, str]:
    """Wait until a condition of the current generation has this status (and reason); return it."""

    def found() -> dict[str, str] | None:
        resource = get("infsvc", name, NAMESPACE)
        seen = condition(resource, kind)
        current = resource is not None and seen.get("observedGeneration") == resource["metadata"]["generation"]
        matches = seen.get("status") == status and (reason is None or seen.get("reason") == reason)
        return seen if current and matches else None

    try:
        return wait_until(f"{name}: {kind}={status} {reason or ''}", found, seconds)
    except Exception as late:
        resource = get("infsvc", name, NAMESPACE) or {}
        raise AssertionError(f"{late}; status: {json.dumps(resource.get('status', {}), indent=1)}") from late


def fetch(url: str, timeout: float = 10) -> tuple[int, str, float]:
    """(HTTP status, body, seconds that it took)."""
    started = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            body, status = response.read().decode(), response.status
    except urllib.error.HTTPError as refused:
        body, status = refused.read().decode(), refused.code
    return status, body, time.monotonic() - started
