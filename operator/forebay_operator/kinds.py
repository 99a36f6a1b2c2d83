"""The kinds of objects that the operator reads or writes, and where the API server keeps them."""

from dataclasses import dataclass

from forebay_operator.api.common import GROUP, VERSION
from forebay_operator.names import MANAGED_SELECTOR


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    group: str
    """Empty for the core group."""
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    label_selector: str | None = None
    """Which of them are watched; None: all."""
    labels_only: bool = False
    """Only labels are kept and only their changes are news: such objects are large and change all the time."""

    @property
    def api_version(self) -> str:
        """As manifests write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path on the API server."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *(part for part in (name, subresource) if part)])


INFERENCE_SERVICE = Kind(GROUP, VERSION, "InferenceService", "inferenceservices")
ACCELERATOR_PROFILE = Kind(GROUP, VERSION, "AcceleratorProfile", "acceleratorprofiles", namespaced=False)
NODE = Kind("", "v1", "Node", "nodes", namespaced=False, labels_only=True)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments", label_selector=MANAGED_SELECTOR)
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets", label_selector=MANAGED_SELECTOR)
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", label_selector=MANAGED_SELECTOR)
SERVICE = Kind("", "v1", "Service", "services", label_selector=MANAGED_SELECTOR)
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts", label_selector=MANAGED_SELECTOR)
POD = Kind("", "v1", "Pod", "pods", label_selector=MANAGED_SELECTOR)
EVENT = Kind("", "v1", "Event", "events")

CHILDREN = (DEPLOYMENT, REPLICA_SET, CONTROLLER_REVISION, SERVICE, SERVICE_ACCOUNT, POD)
WATCHED = (INFERENCE_SERVICE, ACCELERATOR_PROFILE, NODE, *CHILDREN)

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in (*WATCHED, EVENT)}


def kind_of(api_version: str, kind: str) -> Kind:
    """The kind that a manifest is of.

    Raises:
        KeyError: it is none that the operator knows.
    """
    return _BY_NAME[api_version, kind]
