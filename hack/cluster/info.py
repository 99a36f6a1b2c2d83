"""What `up` tells everyone else: `.cluster/cluster.json` in the checkout, the only file that tests and tools read."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hack.cluster.errors import ClusterError

FILE = Path(".cluster") / "cluster.json"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A running cluster, as seen from the host.

    Attributes:
        cluster_id: eight hexadecimal digits.
        kubernetes_version: as the API server reports it.
        kubeconfig: file of the cluster's admin.
        kubectl: program of the cluster's own version.
        helm: program.
        api_server: URL.
        node_name: the one node.
        node_address: its address; the host reaches it directly.
        host_address: the host, as nodes and pods reach it.
        pod_cidr: pod addresses; the host has a route to them.
        service_cidr: ClusterIPs; the host has a route to them.
        dns_address: ClusterIP of the DNS Service.
        registry: host:port to push images to, plain http.
        image_prefix: what pods put before a pushed image's name: `PREFIX/NAME:TAG`.
        containerd_socket: for `ctr --address SOCKET --namespace k8s.io`.
        network_namespace: file for `nsenter --net=FILE`.
        kubelet_root: the kubelet's folder, with the volumes of pods.
        logs: folder of the components' logs.
    """

    cluster_id: str
    kubernetes_version: str
    kubeconfig: str
    kubectl: str
    helm: str
    api_server: str
    node_name: str
    node_address: str
    host_address: str
    pod_cidr: str
    service_cidr: str
    dns_address: str
    registry: str
    image_prefix: str
    containerd_socket: str
    network_namespace: str
    kubelet_root: str
    logs: str

    @classmethod
    def load(cls, checkout: Path) -> "ClusterInfo":
        """Read a checkout's cluster.

        Raises:
            ClusterError: no cluster is up, or one of another version of this tool wrote the file.
        """
        file = checkout / FILE
        if not file.exists():
            raise ClusterError(f"no cluster: {file} does not exist; run `make cluster-up`")
        content = json.loads(file.read_text(encoding="utf-8"))
        if set(content) != {field.name for field in fields(cls)}:
            raise ClusterError(f"{file} was written by another version; run `make cluster-up`")
        return cls(**content)

    def save(self, checkout: Path) -> None:
        """Write the file, replacing an older one in one step."""
        file = checkout / FILE
        file.parent.mkdir(exist_ok=True)
        staged = file.with_suffix(".new")
        staged.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        staged.replace(file)
