"""Certificates: real ones, checked by openssl itself against what Kubernetes wants of each."""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hack.cluster import pki
from hack.cluster.network import Network

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
NETWORK = Network(2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pki")
    assert pki.create(made, NETWORK, "forebay")
    return made


def _openssl(*arguments: str) -> str:
    return subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=True).stdout


def _names(certificate: Path) -> str:
    return _openssl("x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName")


@pytest.mark.parametrize("certificate", pki.certificates(NETWORK, "forebay"), ids=lambda one: one.name)
def test_each_certificate_is_signed_by_its_authority(folder: Path, certificate: pki.Certificate) -> None:
    purpose = ["-purpose", "sslclient"] if not certificate.is_authority else []
    authority = str(folder / f"{certificate.authority}.crt")
    assert "OK" in _openssl("verify", *purpose, "-CAfile", authority, str(folder / f"{certificate.name}.crt"))


def test_a_client_of_the_front_proxy_is_no_client_of_the_cluster(folder: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        _openssl("verify", "-CAfile", str(folder / "ca.crt"), str(folder / "front-proxy-client.crt"))


def test_the_api_server_is_named_by_every_address_that_reaches_it(folder: Path) -> None:
    names = _names(folder / "kube-apiserver.crt")
    for name in ("IP Address:10.213.2.2", "IP Address:10.215.2.1", "DNS:kubernetes.default.svc"):
        assert name in names


def test_a_pure_client_serves_nobody(folder: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        _openssl("verify", "-purpose", "sslserver", "-CAfile", str(folder / "ca.crt"), str(folder / "admin.crt"))


def test_only_what_is_missing_is_created_again(folder: Path) -> None:
    authority = (folder / "ca.crt").read_bytes()
    assert not pki.create(folder, NETWORK, "forebay")
    (folder / "kube-proxy.crt").unlink()
    assert pki.create(folder, NETWORK, "forebay")
    assert (folder / "ca.crt").read_bytes() == authority


def test_a_kubeconfig_carries_its_certificates(folder: Path) -> None:
    config = json.loads(pki.kubeconfig(folder, "admin", "https://10.213.2.2:6443"))
    embedded = base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
    assert embedded == (folder / "admin.crt").read_bytes()
    assert config["clusters"][0]["cluster"]["server"] == "https://10.213.2.2:6443"
