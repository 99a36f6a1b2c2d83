"""The pod template of an engine, in the order of its YAML. Pure."""

import json
from typing import Any

from forebay_operator import names
from forebay_operator.api.inference_service import PodTemplate
from forebay_operator.flags import (
    API_KEYS_FOLDER,
    API_PORT,
    MODEL_FOLDER,
    OPS_PORT,
    PLAN_FILE,
    drain_seconds,
    model_path,
    serve_arguments,
)
from forebay_operator.resolved import Placement, Resolved

PRE_STOP_SECONDS = 5
"""Endpoints need this long to forget a pod that ends."""
GRACE_MARGIN_SECONDS = 15
"""After the drain, for the engine to end by itself."""
GIB = 2**30

RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The Pod Security Standard `restricted`, and a root file system that cannot be written."""


def pod_template(resolved: Resolved) -> dict[str, Any]:
    """The template of a Deployment's pods."""
    extra = resolved.spec.pod_template or PodTemplate()
    spec: dict[str, Any] = {
        "serviceAccountName": resolved.owner.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP_SECONDS + drain_seconds(resolved) + GRACE_MARGIN_SECONDS,
        "securityContext": RESTRICTED_POD,
        **placement_fields(resolved.placement, extra),
        "containers": [_container(resolved, extra)],
        "volumes": _volumes(resolved),
    }
    if extra.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in extra.image_pull_secrets]
    if extra.priority_class_name:
        spec["priorityClassName"] = extra.priority_class_name
    if extra.runtime_class_name:
        spec["runtimeClassName"] = extra.runtime_class_name
    return {
        "metadata": {
            "labels": {
                **(extra.labels or {}),
                **names.labels(resolved.owner.name),
                names.REVISION_LABEL: resolved.revision,
            },
            "annotations": {
                **(extra.annotations or {}),
                names.PLAN_ANNOTATION: json.dumps(resolved.plan.to_status(), separators=(",", ":")),
            },
        },
        "spec": spec,
    }


def placement_fields(placement: Placement, extra: PodTemplate) -> dict[str, Any]:
    """Node selector, affinity and tolerations; only the fields that say something."""
    fields: dict[str, Any] = {}
    if selector := {**(extra.node_selector or {}), **placement.node_selector}:
        fields["nodeSelector"] = selector
    if placement.node_label is not None:
        key, values = placement.node_label
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
        fields["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        }
    own = [toleration.model_dump(by_alias=True, exclude_none=True) for toleration in extra.tolerations or ()]
    if tolerations := [*placement.tolerations, *own]:
        fields["tolerations"] = tolerations
    return fields


def _container(resolved: Resolved, extra: PodTemplate) -> dict[str, Any]:
    engine = resolved.spec.engine
    return {
        "name": "engine",
        "image": (engine and engine.image) or resolved.default_image,
        "imagePullPolicy": resolved.image_pull_policy,
        "command": ["forebay"],
        "args": ["serve", *serve_arguments(resolved)],
        "env": _environment(extra),
        "ports": [
            {"name": "http", "containerPort": API_PORT, "protocol": "TCP"},
            {"name": "ops", "containerPort": OPS_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(resolved, extra),
        # No startupProbe: /livez itself knows when loading stands still. A hung engine must not "drain" for minutes.
        "livenessProbe": {
            "httpGet": {"path": "/livez", "port": "ops", "scheme": "HTTP"},
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
            "terminationGracePeriodSeconds": 10,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "ops", "scheme": "HTTP"},
            "periodSeconds": 3,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": _mounts(resolved),
    }


def _environment(extra: PodTemplate) -> list[dict[str, str]]:
    ours = {
        "HOME": "/tmp",  # the root file system is read-only
        "TRITON_CACHE_DIR": "/cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
    }
    given = {variable.name: variable.value for variable in extra.env or ()}
    return [{"name": name, "value": value} for name, value in {**ours, **given}.items()]


def _resources(resolved: Resolved, extra: PodTemplate) -> dict[str, Any]:
    """Request equals limit, so that the plan's budget is there; no CPU limit, because throttling breaks probes."""
    memory = resolved.spec.memory
    if memory is not None:
        return {"requests": {"cpu": extra.cpu or "1", "memory": memory}, "limits": {"memory": memory}}
    gpus = resolved.plan.num_gpus
    # Host memory of a rank: interpreter, CUDA context and pinned staging. Page cache comes on top and is reclaimable.
    host = f"{4 + 8 * gpus}Gi"
    count = {resolved.accelerator.resource_name: str(gpus)}
    return {
        "requests": {"cpu": extra.cpu or str(1 + gpus), "memory": host, **count},
        "limits": {"memory": host, **count},
    }


def _mounts(resolved: Resolved) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "model", "mountPath": MODEL_FOLDER, "readOnly": True},
        {"name": "plan", "mountPath": PLAN_FILE.rpartition("/")[0], "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": "/cache"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if resolved.spec.endpoint and resolved.spec.endpoint.api_keys_secret_ref:
        mounts.append({"name": "api-keys", "mountPath": API_KEYS_FOLDER, "readOnly": True})
    return mounts


def _volumes(resolved: Resolved) -> list[dict[str, Any]]:
    claim, _ = model_path(resolved.spec.model.uri)
    plan = {
        "path": PLAN_FILE.rpartition("/")[2],
        "fieldRef": _field(f"metadata.annotations['{names.PLAN_ANNOTATION}']"),
    }
    shm = "256Mi" if resolved.accelerator.device == "cpu" else f"{resolved.plan.num_gpus}Gi"
    volumes: list[dict[str, Any]] = [
        {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
        {"name": "plan", "downwardAPI": {"items": [plan]}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "cache", "emptyDir": {"sizeLimit": "4Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},  # counts towards the memory limit
    ]
    if resolved.spec.endpoint and (keys := resolved.spec.endpoint.api_keys_secret_ref):
        volumes.append(
            {
                "name": "api-keys",
                "secret": {"secretName": keys.name, "items": [{"key": keys.key, "path": keys.key}]},
            }
        )
    return volumes


def _field(path: str) -> dict[str, str]:
    return {"apiVersion": "v1", "fieldPath": path}
