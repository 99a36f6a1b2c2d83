"""The admission webhook: off unless asked for, whole when it is on, and never in anybody's way."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest

from forebay_operator.settings import settings_from
from forebay_operator.webhook import PATH
from tests.test_helm.chart import Manifest, of_kind, only, render

ON = "webhook.enabled=true"
NAME = "forebay-operator-webhook"


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return render(ON, namespace="elsewhere")


def hook_of(manifests: list[Manifest]) -> dict[str, Any]:
    (hook,) = only(manifests, "ValidatingWebhookConfiguration")["webhooks"]
    return dict(hook)


def test_it_is_off_unless_asked_for() -> None:
    manifests = render()
    assert not of_kind(manifests, "ValidatingWebhookConfiguration")
    assert not of_kind(manifests, "Secret")


def test_the_api_server_is_led_to_the_operators_port(manifests: list[Manifest]) -> None:
    service = only(manifests, "Service", NAME)
    where = hook_of(manifests)["clientConfig"]["service"]
    assert where == {"name": NAME, "namespace": "elsewhere", "path": PATH, "port": service["spec"]["ports"][0]["port"]}
    pod = only(manifests, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    container = pod["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = settings_from({variable["name"]: variable["value"] for variable in container["env"]})
    assert settings.webhook_port == ports[service["spec"]["ports"][0]["targetPort"]]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert mounts["webhook"] == settings.webhook_certificates
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["webhook"]["secret"]["secretName"] == only(manifests, "Secret")["metadata"]["name"]


def test_the_certificate_is_for_the_service_and_signed_by_what_the_api_server_trusts(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    data = only(manifests, "Secret")["data"]
    assert hook_of(manifests)["clientConfig"]["caBundle"] == data["ca.crt"]
    for name, value in data.items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cafile=str(tmp_path / "ca.crt")),
    )
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert shake_hands(server, client, f"{NAME}.elsewhere.svc") is None
    assert shake_hands(server, client, "other.elsewhere.svc") is not None


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str | None:
    """A TLS handshake in memory; why the client refused the certificate, or None."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    assert ends[0].getpeercert()  # raises when the two did not come to an end
    return None


def test_it_is_in_nobodys_way(manifests: list[Manifest]) -> None:
    hook = hook_of(manifests)
    assert hook["failurePolicy"] == "Ignore"
    assert hook["sideEffects"] == "None"
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["inferenceservices"])
    assert "namespaceSelector" not in hook


def test_it_asks_only_where_the_operator_looks() -> None:
    hook = hook_of(render(ON, "watchNamespaces={team-a}"))
    (expression,) = hook["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["team-a"]
