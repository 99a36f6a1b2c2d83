"""The cluster's certificate authority, its certificates and the kubeconfigs that carry them, made with openssl.

Who may do what follows from the names in here: Kubernetes reads the user from CN and the groups from O.
Source: https://kubernetes.io/docs/setup/best-practices/certificates/
"""

import base64
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hack.cluster.errors import ClusterError
from hack.cluster.network import Network
from hack.cluster.packages import program

CLUSTER_AUTHORITY = "ca"
# Vouches for the API server towards servers that it passes requests on to. An authority of its own: whoever has a
# certificate from it may claim to be any user.
FRONT_PROXY_AUTHORITY = "front-proxy-ca"

_DAYS = "3650"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# Its own configuration: the system-wide one adds extensions of its own to every certificate.
_CONFIG_NAME = "openssl.cnf"
_CONFIG = "[req]\ndistinguished_name = subject\n[subject]\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate to issue.

    Attributes:
        name: of its files, `NAME.crt` and `NAME.key`.
        subject: as openssl writes it, `/O=group/CN=user`.
        server_names: what a server is reached as, `DNS:…` and `IP:…`; empty for a pure client.
        authority: name of the certificate authority that signs it; the authorities are their own.
    """

    name: str
    subject: str
    server_names: tuple[str, ...] = ()
    authority: str = CLUSTER_AUTHORITY

    @property
    def is_authority(self) -> bool:
        """Whether it signs others."""
        return self.name == self.authority


def certificates(network: Network, node_name: str) -> tuple[Certificate, ...]:
    """Return every certificate of a cluster, authorities first. Pure."""
    node = f"IP:{network.node_address}"
    api_names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    api_server_names = (
        *(f"DNS:{name}" for name in (*api_names, "localhost")),
        *(node, f"IP:{network.api_service_address}", "IP:127.0.0.1"),
    )
    return (
        Certificate(CLUSTER_AUTHORITY, "/CN=forebay-cluster"),
        Certificate(FRONT_PROXY_AUTHORITY, "/CN=forebay-front-proxy", authority=FRONT_PROXY_AUTHORITY),
        Certificate("front-proxy-client", "/CN=front-proxy-client", authority=FRONT_PROXY_AUTHORITY),
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


def create(folder: Path, network: Network, node_name: str) -> bool:
    """Create the keys and certificates that are missing.

    Returns:
        True when any was.

    Raises:
        ClusterError: openssl failed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / _CONFIG_NAME).write_text(_CONFIG, encoding="utf-8")
    is_changed = False
    for certificate in certificates(network, node_name):
        if not (folder / f"{certificate.name}.crt").exists():
            _issue(folder, certificate)
            is_changed = True
    accounts = folder / "service-accounts.key"
    if not accounts.with_suffix(".pub").exists():
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(accounts))
        _openssl("pkey", "-in", str(accounts), "-pubout", "-out", str(accounts.with_suffix(".pub")))
        is_changed = True
    return is_changed


def extensions(certificate: Certificate) -> tuple[str, ...]:
    """Return the X.509 extensions that say what a certificate may be used for. Pure."""
    if certificate.is_authority:
        return ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
    common = ("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature")
    if not certificate.server_names:
        return (*common, "extendedKeyUsage=clientAuth")
    names = ",".join(certificate.server_names)
    return (*common, "extendedKeyUsage=clientAuth,serverAuth", f"subjectAltName={names}")


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


def _issue(folder: Path, certificate: Certificate) -> None:
    """Create a key and its certificate; the certificate's file appears last, complete."""
    staged = folder / f"{certificate.name}.crt.new"
    command = ["req", "-x509", "-config", str(folder / _CONFIG_NAME), "-days", _DAYS, "-subj", certificate.subject]
    command += [*_KEY, "-keyout", str(folder / f"{certificate.name}.key"), "-out", str(staged)]
    if not certificate.is_authority:
        authority = folder / certificate.authority
        command += ["-CA", f"{authority}.crt", "-CAkey", f"{authority}.key"]
    for extension in extensions(certificate):
        command += ["-addext", extension]
    _openssl(*command)
    staged.rename(staged.with_suffix(""))


def _openssl(*arguments: str) -> None:
    done = subprocess.run([program("openssl"), *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
