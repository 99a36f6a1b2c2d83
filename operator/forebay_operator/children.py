"""The objects around the pods: Deployment, Service, ServiceAccount and the revision that keeps a template. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from forebay_operator import names
from forebay_operator.api.common import quantity_value
from forebay_operator.resolved import Owner

Strategy = Literal["Surge", "OneAtATime"]

ENDLESS_DEADLINE_SECONDS = 2**31 - 1
"""The Deployment never gives up by itself: how long a model may load is the operator's judgement."""

_STRATEGIES: dict[Strategy, dict[str, int]] = {
    "Surge": {"maxSurge": 1, "maxUnavailable": 0},
    "OneAtATime": {"maxSurge": 0, "maxUnavailable": 1},
}


def deployment(owner: Owner, template: dict[str, Any], replicas: int, strategy: Strategy) -> dict[str, Any]:
    """The Deployment; it always carries replicas and template, or an apply would reset them."""
    return _child(
        owner,
        "apps/v1",
        "Deployment",
        {
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": names.selector(owner.name)},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": _STRATEGIES[strategy]},
                "progressDeadlineSeconds": ENDLESS_DEADLINE_SECONDS,
                "revisionHistoryLimit": 3,
                "template": template,
            }
        },
    )


def service(owner: Owner) -> dict[str, Any]:
    """The Service in front of the pods' API port."""
    port = {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    return _child(
        owner,
        "v1",
        "Service",
        {"spec": {"type": "ClusterIP", "selector": names.selector(owner.name), "ports": [port]}},
    )


def service_account(owner: Owner) -> dict[str, Any]:
    """The pods' identity: without a token and without any right."""
    return _child(owner, "v1", "ServiceAccount", {"automountServiceAccountToken": False})


def controller_revision(
    owner: Owner, revision: str, number: int, template: dict[str, Any], plan: dict[str, Any]
) -> dict[str, Any]:
    """What was rendered from one set of inputs, kept so that a newer operator renders nothing else from the same."""
    body = _child(
        owner,
        "apps/v1",
        "ControllerRevision",
        {"revision": number, "data": {"template": template, "plan": plan}},
        name=names.revision_name(owner.name, revision),
    )
    body["metadata"]["labels"][names.REVISION_LABEL] = revision
    return body


def _child(owner: Owner, api_version: str, kind: str, body: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    manifest: dict[str, Any] = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name or owner.name,
            "namespace": owner.namespace,
            "labels": names.labels(owner.name),
            "ownerReferences": [owner.reference()],
        },
        **body,
    }
    manifest["metadata"]["annotations"] = {names.APPLIED_ANNOTATION: digest(manifest)}
    return manifest


def template_revision(deployment: Mapping[str, Any] | None) -> str:
    """Which revision a Deployment runs; empty when there is none."""
    template = (deployment or {}).get("spec", {}).get("template", {})
    return str(template.get("metadata", {}).get("labels", {}).get(names.REVISION_LABEL, ""))


def digest(value: Any) -> str:
    """Ten hexadecimal digits that stand for a value of JSON, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def is_applied(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
    """Whether an object already is as desired: the same manifest was applied, and nobody changed its fields since."""
    return _covers(observed, desired)


def _covers(observed: Any, desired: Any) -> bool:
    """Every field of desired stands in observed; defaults that the API server added do not matter."""
    if isinstance(desired, Mapping):
        return isinstance(observed, Mapping) and all(
            _covers(observed.get(key), value) for key, value in desired.items() if value not in ({}, [])
        )
    if isinstance(desired, list):
        return isinstance(observed, list) and all(any(_covers(item, want) for item in observed) for want in desired)
    return bool(observed == desired) or _same_quantity(observed, desired)


def _same_quantity(observed: Any, desired: Any) -> bool:
    """The API server writes 1024Mi as 1Gi."""
    if not (isinstance(observed, str) and isinstance(desired, str)):
        return False
    try:
        return quantity_value(observed) == quantity_value(desired)
    except ValueError:
        return False
