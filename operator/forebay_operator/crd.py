"""The CustomResourceDefinition documents, made from the types in `api`."""

from typing import Any

import yaml
from pydantic import BaseModel

from forebay_operator.api.accelerator_profile import AcceleratorProfileSpec
from forebay_operator.api.common import GROUP, VERSION
from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.api.schema import structural_schema
from forebay_operator.api.status import InferenceServiceStatus

_NAME_RULE = {
    "rule": "self.metadata.name.size() <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "fieldPath": ".metadata.name",
    "message": "metadata.name must be at most 50 characters of a-z, 0-9 and '-', beginning with a letter and ending "
    "with a letter or digit: it also names a Service",
}


def _column(name: str, path: str, kind: str = "string", priority: int = 0, description: str = "") -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if priority:
        column["priority"] = priority
    if description:
        column["description"] = description
    return column


def _ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


_SERVICE_COLUMNS = [
    _column("Model", ".spec.model.uri", description="Where the model lies"),
    _column("TP", ".status.plan.tensorParallelSize", "integer", description="Accelerators that share each layer"),
    _column("Quant", ".status.plan.weights", description="Format of the weights"),
    _column("Ready", _ready("status"), description="Whether requests are answered"),
    _column("Desired", ".spec.replicas", "integer", description="Pods asked for"),
    _column("Reason", _ready("reason"), description="Why it is or is not ready"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Endpoint", ".status.endpoint", priority=1),
    _column("Accelerator", ".status.acceleratorProfile", priority=1),
    _column("KV tokens", ".status.plan.kvCacheTokens", "integer", priority=1, description="Tokens in a pod's KV cache"),
]

_PROFILE_COLUMNS = [
    _column("Memory", ".spec.memory"),
    _column("Per node", ".spec.gpusPerNode", "integer"),
    _column("Resource", ".spec.resourceName"),
    _column("Age", ".metadata.creationTimestamp", "date"),
]


def inference_service_crd() -> dict[str, Any]:
    """The CRD of InferenceService."""
    return _crd(
        kind="InferenceService",
        plural="inferenceservices",
        short_name="infsvc",
        scope="Namespaced",
        description="A language model served behind an OpenAI-style endpoint.",
        spec=InferenceServiceSpec,
        status=InferenceServiceStatus,
        columns=_SERVICE_COLUMNS,
        extra_schema={"x-kubernetes-validations": [_NAME_RULE]},
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    )


def accelerator_profile_crd() -> dict[str, Any]:
    """The CRD of AcceleratorProfile."""
    return _crd(
        kind="AcceleratorProfile",
        plural="acceleratorprofiles",
        short_name="accprofile",
        scope="Cluster",
        description="What one kind of accelerator can do and which nodes have it; wins over a built-in profile.",
        spec=AcceleratorProfileSpec,
        status=None,
        columns=_PROFILE_COLUMNS,
        extra_schema={},
        subresources={},
    )


def _crd(
    *,
    kind: str,
    plural: str,
    short_name: str,
    scope: str,
    description: str,
    spec: type[BaseModel],
    status: type[BaseModel] | None,
    columns: list[dict[str, Any]],
    extra_schema: dict[str, Any],
    subresources: dict[str, Any],
) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        # The bound is for the cost estimate of rules about the name; the rule itself has the better message.
        "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
        "spec": structural_schema(spec),
    }
    if status is not None:
        properties["status"] = structural_schema(status)
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": description,
                "required": ["spec"],
                "properties": properties,
                **extra_schema,
            }
        },
        "additionalPrinterColumns": columns,
    }
    if subresources:
        version["subresources"] = subresources
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "forebay", "app.kubernetes.io/part-of": "forebay"},
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["forebay"],
            },
            "versions": [version],
        },
    }


def documents() -> dict[str, str]:
    """File name to YAML text, for every CRD."""
    head = "# Generated by `forebay crds`; change the types in forebay_operator/api instead.\n"
    return {
        f"{document['spec']['names']['plural']}.yaml": head
        + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)
        for document in (inference_service_crd(), accelerator_profile_crd())
    }
