"""The list of all processes of a cluster, in the order they start; each is described once. Pure."""

from hack.cluster.configs import API_PORT, NODE_NAME, Settings
from hack.cluster.health import CommandCheck, HttpCheck
from hack.cluster.processes import Component

# The order of starting; stopping goes the other way round.
NAMES = (
    "registry",
    "containerd",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "coredns",
    "kubelet",
    "kube-proxy",
)


def components(settings: Settings, programs: dict[str, str]) -> tuple[Component, ...]:
    """Return every component in the order of NAMES.

    Args:
        settings: addresses and folders.
        programs: program name -> absolute path, for the built and the installed ones alike.
    """
    paths, network = settings.paths, settings.network
    config, pki, node = paths.config, paths.pki, network.node_address
    authority = pki / "ca.crt"
    socket = str(paths.containerd_socket)
    return (
        Component(
            "registry",
            (programs["docker-registry"], "serve", f"{config}/registry.yaml"),
            HttpCheck(f"http://{settings.registry}/v2/"),
            (config / "registry.yaml",),
        ),
        Component(
            "containerd",
            (programs["containerd"], "--config", f"{config}/containerd.toml"),
            CommandCheck((programs["ctr"], "--address", socket, "version")),
            (config / "containerd.toml", config / "cni" / "10-forebay.conflist"),
        ),
        Component(
            "etcd",
            (
                programs["etcd"],
                f"--data-dir={paths.etcd}",
                # Reachable only inside the namespace; peers there are none.
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                f"--listen-metrics-urls=http://{node}:2381",
                # Ten times faster on a slow disk; what a power cut breaks is thrown away by the next `up`.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ),
            HttpCheck(f"http://{node}:2381/health"),
        ),
        Component(
            "kube-apiserver",
            (
                programs["kube-apiserver"],
                f"--advertise-address={node}",
                f"--secure-port={API_PORT}",
                "--etcd-servers=http://127.0.0.1:2379",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--service-cluster-ip-range={network.services}",
                f"--client-ca-file={authority}",
                f"--tls-cert-file={pki}/kube-apiserver.crt",
                f"--tls-private-key-file={pki}/kube-apiserver.key",
                f"--kubelet-certificate-authority={authority}",
                f"--kubelet-client-certificate={pki}/kube-apiserver-kubelet-client.crt",
                f"--kubelet-client-key={pki}/kube-apiserver-kubelet-client.key",
                "--kubelet-preferred-address-types=InternalIP",
                f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
                f"--proxy-client-key-file={pki}/front-proxy-client.key",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={pki}/service-accounts.pub",
                f"--service-account-signing-key-file={pki}/service-accounts.key",
            ),
            HttpCheck(f"{settings.api_server}/readyz", authority),
            (authority,),
        ),
        Component(
            "kube-controller-manager",
            (
                programs["kube-controller-manager"],
                *_control_plane_flags(settings, "kube-controller-manager"),
                "--use-service-account-credentials",
                f"--service-account-private-key-file={pki}/service-accounts.key",
                f"--root-ca-file={authority}",
                f"--cluster-signing-cert-file={authority}",
                f"--cluster-signing-key-file={pki}/ca.key",
            ),
            HttpCheck(f"https://{node}:10257/healthz", authority),
            (config / "kube-controller-manager.kubeconfig",),
        ),
        Component(
            "kube-scheduler",
            (programs["kube-scheduler"], *_control_plane_flags(settings, "kube-scheduler")),
            HttpCheck(f"https://{node}:10259/healthz", authority),
            (config / "kube-scheduler.kubeconfig",),
        ),
        Component(
            "coredns",
            (programs["coredns"], "-conf", f"{config}/Corefile"),
            HttpCheck(f"http://{node}:8181/ready"),
            (config / "Corefile", config / "coredns.kubeconfig"),
        ),
        Component(
            "kubelet",
            (
                programs["kubelet"],
                f"--config={config}/kubelet.yaml",
                f"--kubeconfig={config}/kubelet.kubeconfig",
                f"--root-dir={paths.kubelet}",
                f"--cert-dir={paths.pki}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={node}",
            ),
            HttpCheck(f"http://{node}:10248/healthz"),
            (config / "kubelet.yaml", config / "kubelet.kubeconfig"),
        ),
        Component(
            "kube-proxy",
            (programs["kube-proxy"], f"--config={config}/kube-proxy.yaml"),
            HttpCheck(f"http://{node}:10256/healthz"),
            (config / "kube-proxy.yaml", config / "kube-proxy.kubeconfig"),
        ),
    )


def _control_plane_flags(settings: Settings, name: str) -> tuple[str, ...]:
    kubeconfig = settings.paths.config / f"{name}.kubeconfig"
    return (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={settings.network.node_address}",
        f"--tls-cert-file={settings.paths.pki}/node.crt",
        f"--tls-private-key-file={settings.paths.pki}/node.key",
        "--leader-elect=false",  # there is one of it
    )
