"""The cluster's certificate authority, its certificates and the kubeconfigs that carry them, made with openssl.

Who may do what follows from the names in here: Kubernetes reads the user from CN and the groups from O.
Source: https://kubernetes.io/docs/setup/best-practices/certificates/
"""

import base64
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hack.cluster.errors import ClusterError
from hack.cluster.network import Network
from hack.cluster.packages import program

_DAYS = "3650"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# Its own configuration: the system-wide one adds extensions of its own to every certificate.
_CONFIG = "[req]\ndistinguished_name = subject\n[subject]\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate to issue.

    Attributes:
        name: of its files, `NAME.crt` and `NAME.key`.
        subject: as openssl writes it, `/O=group/CN=user`.
        server_names: what a server is reached as, `DNS:…` and `IP:…`; empty for a pure client.
    """

    name: str
    subject: str
    server_names: tuple[str, ...] = ()


def certificates(network: Network, node_name: str) -> tuple[Certificate, ...]:
    """Return every certificate of a cluster. Pure."""
    node = f"IP:{network.node_address}"
    api_names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    api_server_names = (
        *(f"DNS:{name}" for name in (*api_names, "localhost")),
        *(node, f"IP:{network.api_service_address}", "IP:127.0.0.1"),
    )
    return (
        Certificate("kube-apiserver", "/CN=kube-apiserver", api_server_names),
        Certificate("node", f"/CN={node_name}", (node, f"DNS:{node_name}", "IP:127.0.0.1")),
        Certificate("kube-apiserver-kubelet-client", "/CN=kube-apiserver-kubelet-client"),
        Certificate("admin", "/O=system:masters/CN=forebay-admin"),
        Certificate("kubelet", f"/O=system:nodes/CN=system:node:{node_name}"),
        Certificate("kube-controller-manager", "/CN=system:kube-controller-manager"),
        Certificate("kube-scheduler", "/CN=system:kube-scheduler"),
        Certificate("kube-proxy", "/CN=system:kube-proxy"),
        Certificate("coredns", "/CN=system:coredns"),
    )


def create(folder: Path, network: Network, node_name: str) -> None:
    """Create the authority, the service-account keys and every certificate; the folder appears when all are there.

    Raises:
        ClusterError: openssl failed.
    """
    staged = folder.with_name(folder.name + ".new")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True, mode=0o700)
    config = staged / "openssl.cnf"
    config.write_text(_CONFIG, encoding="utf-8")
    authority = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
    _issue(config, "ca", "/CN=forebay-cluster", authority, ())
    signed_by = ("-CA", str(staged / "ca.crt"), "-CAkey", str(staged / "ca.key"))
    for each in certificates(network, node_name):
        usage = "extendedKeyUsage=clientAuth,serverAuth" if each.server_names else "extendedKeyUsage=clientAuth"
        extensions = ["basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature", usage]
        if each.server_names:
            extensions.append(f"subjectAltName={','.join(each.server_names)}")
        _issue(config, each.name, each.subject, tuple(extensions), signed_by)
    accounts = str(staged / "service-accounts.key")
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", accounts)
    _openssl("pkey", "-in", accounts, "-pubout", "-out", str(staged / "service-accounts.pub"))
    staged.rename(folder)


def kubeconfig(folder: Path, user: str, server: str) -> str:
    """Return a kubeconfig with everything embedded, so that the file works wherever it is copied.

    Args:
        folder: where `create` put the certificates.
        user: name of a client certificate.
        server: URL of the API server.
    """

    def embedded(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "forebay", "cluster": {"server": server, "certificate-authority-data": embedded("ca.crt")}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": embedded(f"{user}.crt"),
                    "client-key-data": embedded(f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "forebay", "context": {"cluster": "forebay", "user": user}}],
        "current-context": "forebay",
    }
    return json.dumps(content, indent=2) + "\n"


def _issue(config: Path, name: str, subject: str, extensions: tuple[str, ...], signed_by: tuple[str, ...]) -> None:
    """Create a key and a certificate beside the configuration; self-signed without `signed_by`."""
    files = ("-keyout", str(config.with_name(f"{name}.key")), "-out", str(config.with_name(f"{name}.crt")))
    added = [word for extension in extensions for word in ("-addext", extension)]
    command = ("req", "-x509", "-config", str(config), "-days", _DAYS, "-subj", subject)
    _openssl(*command, *_KEY, *files, *signed_by, *added)


def _openssl(*arguments: str) -> None:
    done = subprocess.run([program("openssl"), *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
