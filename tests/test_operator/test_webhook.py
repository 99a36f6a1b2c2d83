"""The webhook over real HTTPS, as the API server calls it."""

import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from forebay_operator.cache import Cache
from forebay_operator.observed import Defaults
from forebay_operator.settings import SettingsError
from forebay_operator.webhook import PATH, WebhookServer
from tests.test_operator.world import SPEC

DEFAULTS = Defaults(engine_image="engine:1", operator_image="operator:1", image_pull_policy="IfNotPresent")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command += ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
async def port(certificates: Path) -> AsyncIterator[int]:
    server = WebhookServer(Cache(), DEFAULTS)
    yield await server.start(0, certificates)
    await server.close()


async def post(port: int, certificates: Path, body: Any) -> tuple[int, Any]:
    context = ssl.create_default_context(cafile=str(certificates / "tls.crt"))
    url = f"https://127.0.0.1:{port}{PATH}"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, ssl=context) as response:
        return response.status, await (response.json() if response.status == 200 else response.text())


def review(**spec: Any) -> dict[str, Any]:
    body = {"metadata": {"name": "new", "namespace": "test"}, "spec": {**SPEC, **spec}}
    request = {"uid": "abc", "operation": "CREATE", "name": "new", "namespace": "test", "object": body}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def test_a_review_is_answered_with_its_uid(port: int, certificates: Path) -> None:
    status, let_in = await post(port, certificates, review())
    assert (status, let_in["response"]) == (200, {"uid": "abc", "allowed": True})
    _, refused = await post(port, certificates, review(replicas=-1))
    assert refused["response"]["allowed"] is False
    assert "spec.replicas" in refused["response"]["status"]["message"]


@pytest.mark.parametrize("body", [[], {}, {"request": {}}, {"request": 1}, "text"])
async def test_what_is_no_review_is_the_callers_fault(port: int, certificates: Path, body: Any) -> None:
    status, text = await post(port, certificates, body)
    assert (status, text) == (400, "not an AdmissionReview of admission.k8s.io/v1\n")


async def test_without_a_certificate_it_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="FOREBAY_WEBHOOK_CERTIFICATES"):
        await WebhookServer(Cache(), DEFAULTS).start(0, tmp_path)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(SettingsError, match="FOREBAY_WEBHOOK_CERTIFICATES"):
        await WebhookServer(Cache(), DEFAULTS).start(0, tmp_path)


async def test_a_port_that_is_taken_is_named(port: int, certificates: Path) -> None:
    other = WebhookServer(Cache(), DEFAULTS)
    with pytest.raises(SettingsError, match=f"FOREBAY_WEBHOOK_PORT {port}"):
        await other.start(port, certificates)
    await other.close()
