"""The pod that reads a model's facts: the operator's image, with the model's claim mounted read-only. Pure."""

from typing import Any

from forebay_operator import names
from forebay_operator.api.inference_service import InferenceServiceSpec, PodTemplate
from forebay_operator.flags import MODEL_FOLDER, model_path
from forebay_operator.pods import RESTRICTED_CONTAINER, RESTRICTED_POD, placement_fields
from forebay_operator.resolved import Owner, Placement


def inspect_pod(
    owner: Owner,
    spec: InferenceServiceSpec,
    placement: Placement,
    image: str,
    pull_policy: str,
    attempt: int,
) -> dict[str, Any]:
    """The pod of one attempt; it may run on any node that can mount the claim."""
    claim, path = model_path(spec.model.uri)
    extra = spec.pod_template or PodTemplate()
    # Tolerations, so that a claim bound to an accelerator's node can be read; no selector, to need no such node.
    tolerated = placement_fields(
        Placement(tolerations=placement.tolerations), PodTemplate(tolerations=extra.tolerations)
    )
    pod_spec: dict[str, Any] = {
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 600,
        "terminationGracePeriodSeconds": 1,
        "securityContext": RESTRICTED_POD,
        **tolerated,
        "containers": [
            {
                "name": "inspect",
                "image": image,
                "imagePullPolicy": pull_policy,
                "command": ["forebay"],
                "args": ["inspect", "--model", path, "--termination-log", "/dev/termination-log"],
                "env": [{"name": "HOME", "value": "/tmp"}],
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": RESTRICTED_CONTAINER,
                "volumeMounts": [
                    {"name": "model", "mountPath": MODEL_FOLDER, "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    if extra.image_pull_secrets:
        pod_spec["imagePullSecrets"] = [{"name": secret.name} for secret in extra.image_pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.inspect_pod_name(owner.name, spec.model.uri, spec.model.revision, attempt),
            "namespace": owner.namespace,
            "labels": names.labels(owner.name, "inspect"),
            "annotations": {names.ATTEMPT_ANNOTATION: str(attempt)},
            "ownerReferences": [owner.reference()],
        },
        "spec": pod_spec,
    }
