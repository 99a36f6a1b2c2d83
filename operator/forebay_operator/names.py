"""Labels, annotations and the names of children: each is spelled here and nowhere else."""

import hashlib

from forebay_operator.api.common import GROUP

SERVICE_LABEL = f"{GROUP}/service"
"""Name of the InferenceService that an object belongs to."""
REVISION_LABEL = f"{GROUP}/revision"
"""Hash of everything that the pod was made from."""
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
OPERATOR = "forebay-operator"
"""Value of the managed-by label, field manager of every apply and reporter of events."""
AUTOSCALER = "forebay-autoscaler"
"""Field manager of writes to `/scale`."""

PLAN_ANNOTATION = f"{GROUP}/plan"
"""On pods: the plan as JSON, which the engine reads as a file."""
APPLIED_ANNOTATION = f"{GROUP}/applied-hash"
"""On children: hash of the manifest that was applied."""
RESTART_ANNOTATION = f"{GROUP}/restarted-at"
"""On an InferenceService: any new value renders the pods anew, with the operator's present default image."""
ATTEMPT_ANNOTATION = f"{GROUP}/attempt"
"""On inspect pods: which attempt it is, counted from 1."""
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

MANAGED_SELECTOR = f"{MANAGED_BY_LABEL}={OPERATOR}"
"""What the operator watches."""


def selector(service: str) -> dict[str, str]:
    """The immutable labels by which a Deployment and a Service find the pods of one InferenceService."""
    return {SERVICE_LABEL: service, COMPONENT_LABEL: "engine"}


def labels(service: str, component: str = "engine") -> dict[str, str]:
    """All labels of a child."""
    return {
        "app.kubernetes.io/name": "forebay",
        "app.kubernetes.io/instance": service,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/part-of": "forebay",
        MANAGED_BY_LABEL: OPERATOR,
        SERVICE_LABEL: service,
    }


def selector_text(service: str) -> str:
    """The selector as `/scale` shows it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(service).items()))


def revision_name(service: str, revision: str) -> str:
    """Name of the ControllerRevision that keeps a rendered pod template."""
    return f"{service}-{revision}"


def inspect_pod_name(service: str, uri: str, revision: str | None, attempt: int) -> str:
    """Name of the pod that reads a model's facts: at most 63 characters, another one for each model and attempt."""
    digest = hashlib.sha256(f"{uri}\n{revision or ''}".encode()).hexdigest()[:6]
    return f"{service}-i{digest}-{attempt}"


def endpoint(service: str, namespace: str) -> str:
    """Base address for OpenAI clients inside the cluster."""
    return f"http://{service}.{namespace}.svc/v1"
