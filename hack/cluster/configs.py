"""Renders the configuration files of containerd, kubelet, kube-proxy, CoreDNS and the registry. Pure.

JSON is YAML, so what wants YAML is given JSON.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hack.cluster.network import Network
from hack.cluster.paths import Paths

NODE_NAME = "forebay"
IMAGE_PREFIX = "forebay.local"
PAUSE_IMAGE = f"{IMAGE_PREFIX}/pause:v1"
REGISTRY_PORT = 5000
API_PORT = 6443


@dataclass(frozen=True, slots=True)
class Settings:
    """All that configuration depends on.

    Attributes:
        paths: the cluster's files and folders.
        network: its addresses.
        cni_folder: where the CNI plugins are installed.
    """

    paths: Paths
    network: Network
    cni_folder: Path

    @property
    def registry(self) -> str:
        """The registry's host:port, from the host and from inside."""
        return f"{self.network.node_address}:{REGISTRY_PORT}"

    @property
    def api_server(self) -> str:
        """URL of the API server."""
        return f"https://{self.network.node_address}:{API_PORT}"


def render(settings: Settings) -> dict[str, str]:
    """Return every configuration file: name below the config folder -> content."""
    return {name: content(settings) for name, content in _FILES.items()}


def _containerd(settings: Settings) -> str:
    paths = settings.paths
    return f"""version = 2
root = "{paths.containerd}"
state = "{paths.run}/containerd"
# Without it containerd starts as if all were well when its Kubernetes part could not.
required_plugins = ["io.containerd.grpc.v1.cri"]

[grpc]
  address = "{paths.containerd_socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{paths.containerd}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without it a machine that forbids lowering oom_score_adj fails each sandbox ("can't get final child's PID").
  restrict_oom_score_adj = true
  # Below our own folder, so that `down` finds the mounts after a crash.
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{settings.cni_folder}"
    conf_dir = "{paths.config}/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    # The registry keeps the compressed layers on the same disk; a second copy of 5 GB helps nobody.
    discard_unpacked_layers = true

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{paths.run}/runc"
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{paths.config}/registries"
"""


def _registry_hosts(settings: Settings) -> str:
    return f"""server = "http://{settings.registry}"

[host."http://{settings.registry}"]
  capabilities = ["pull", "resolve"]
"""


def _registry(settings: Settings) -> str:
    return _json(
        {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            # No descriptor cache: other checkouts' registries write to the same storage.
            "storage": {
                "filesystem": {"rootdirectory": str(settings.paths.registry_storage)},
                "delete": {"enabled": True},
                "maintenance": {"uploadpurging": {"enabled": True, "age": "24h", "interval": "24h", "dryrun": False}},
            },
            "http": {"addr": settings.registry},
        }
    )


def _cni(settings: Settings) -> str:
    # ptp, not bridge: a routed veth for each pod, so no interface to share and no masquerading.
    pod_network = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{settings.paths.run}/cni-addresses",
            "ranges": [[{"subnet": str(settings.network.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    host_ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return _json({"cniVersion": "1.0.0", "name": settings.paths.cni_network, "plugins": [pod_network, host_ports]})


def _kubelet(settings: Settings) -> str:
    paths = settings.paths
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{paths.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{paths.pki}/node.crt",
            "tlsPrivateKeyFile": f"{paths.pki}/node.key",
            "healthzBindAddress": str(settings.network.node_address),
            "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{paths.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDomain": "cluster.local",
            "clusterDNS": [str(settings.network.dns_address)],
            "resolvConf": f"{paths.config}/resolv.conf",
            "podLogsDir": str(paths.pod_logs),
            "volumePluginDir": f"{paths.kubelet}/volume-plugins",
            # A developer's disk and memory are shared with everything else: being nearly full is no reason to evict,
            # and containerd 1.6 does not protect the sandbox image from collection.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
        }
    )


def _resolv_conf(settings: Settings) -> str:
    return f"nameserver {settings.network.dns_address}\n"


def _kube_proxy(settings: Settings) -> str:
    node = settings.network.node_address
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "bindAddress": str(node),
            "healthzBindAddress": f"{node}:10256",
            "clusterCIDR": str(settings.network.pods),
            "hostnameOverride": NODE_NAME,
            "clientConnection": {"kubeconfig": f"{settings.paths.config}/kube-proxy.kubeconfig"},
            # 0 leaves the connection table alone: its size is the whole machine's and may not be ours to set.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


def _corefile(settings: Settings) -> str:
    node = settings.network.node_address
    # The second block answers everything else, reverse names of other networks included: nothing is forwarded.
    return f"""cluster.local {settings.network.pods} {settings.network.services} {{
    bind {node}
    errors
    ready {node}:8181
    kubernetes cluster.local {settings.network.pods} {settings.network.services} {{
        kubeconfig {settings.paths.config}/coredns.kubeconfig
    }}
    loadbalance
}}

. {{
    bind {node}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"


_FILES: dict[str, Callable[[Settings], str]] = {
    "containerd.toml": _containerd,
    f"registries/{IMAGE_PREFIX}/hosts.toml": _registry_hosts,
    "registry.yaml": _registry,
    "cni/10-forebay.conflist": _cni,
    "kubelet.yaml": _kubelet,
    "resolv.conf": _resolv_conf,
    "kube-proxy.yaml": _kube_proxy,
    "Corefile": _corefile,
}
