"""Where everything of one cluster lies; derived from the checkout's path alone."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

RUN_ROOT = Path("/run/forebay")
KUBELET_LOG_LINKS = Path("/var/log/containers")  # fixed in the kubelet's source
DEVICE_PLUGIN_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")  # fixed in the kubelet's source
CNI_RESULTS = Path("/var/lib/cni/results")  # fixed in the CNI library that containerd uses
SHIM_SOCKETS = Path("/run/containerd/s")  # fixed in containerd's shim


def cache_root() -> Path:
    """Return the folder in the user's cache that all checkouts share."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "forebay"


@dataclass(frozen=True, slots=True)
class Paths:
    """Files and folders of the cluster that belongs to one checkout.

    Attributes:
        checkout: root of the source tree, absolute, links resolved.
        cache: shared by all checkouts: programs, the registry's storage, every cluster's folder.
    """

    checkout: Path
    cache: Path

    @classmethod
    def of_checkout(cls, checkout: Path) -> "Paths":
        """Return the paths for a source tree, with the user's cache folder."""
        return cls(checkout.resolve(), cache_root())

    @property
    def cluster_id(self) -> str:
        """Eight hexadecimal digits: short enough for an interface name with its prefix (15 characters)."""
        return hashlib.sha256(str(self.checkout).encode()).hexdigest()[:8]

    @property
    def programs(self) -> Path:
        """Built programs, one folder a family and version."""
        return self.cache / "bin"

    @property
    def registry_storage(self) -> Path:
        """Image layers; shared, so that a second checkout pushes nothing that is there."""
        return self.cache / "registry"

    @property
    def cluster(self) -> Path:
        """This cluster's own folder on disk."""
        return self.cache / "clusters" / self.cluster_id

    @property
    def logs(self) -> Path:
        """One file a component."""
        return self.cluster / "logs"

    @property
    def pod_logs(self) -> Path:
        """What containers print; written by containerd, read by `kubectl logs`."""
        return self.cluster / "pod-logs"

    @property
    def config(self) -> Path:
        """Rendered configuration files and kubeconfigs."""
        return self.cluster / "config"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.cluster / "pki"

    @property
    def etcd(self) -> Path:
        """Etcd's data: the state of all Kubernetes objects."""
        return self.cluster / "etcd"

    @property
    def kubelet(self) -> Path:
        """The kubelet's root: volumes of pods."""
        return self.cluster / "kubelet"

    @property
    def containerd(self) -> Path:
        """Images and snapshots; survives `down`."""
        return self.cluster / "containerd"

    @property
    def lock(self) -> Path:
        """Held while a command changes this cluster."""
        return self.cache / "clusters" / f"{self.cluster_id}.lock"

    @property
    def run(self) -> Path:
        """What must not outlive a reboot: sockets, process records, the network namespace."""
        return RUN_ROOT / self.cluster_id

    @property
    def network_namespace(self) -> Path:
        """The file that the network namespace is mounted on, for `nsenter --net=FILE`."""
        return self.run / "netns"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens."""
        return self.run / "containerd.sock"

    @property
    def published(self) -> Path:
        """The folder in the checkout that tests and users read."""
        return self.checkout / ".cluster"

    @property
    def cgroup(self) -> str:
        """Name of the cgroup, below each hierarchy's root, that holds every process of the cluster."""
        return f"forebay-{self.cluster_id}"

    @property
    def interface(self) -> str:
        """The host's end of the pair of virtual interfaces."""
        return f"fb-{self.cluster_id}"

    @property
    def cni_network(self) -> str:
        """Name of the CNI network; also the prefix of the CNI library's result files."""
        return f"forebay-{self.cluster_id}"
