"""What reaches the API from a browser (CORS, off by default) and over TLS."""

import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay_server.arguments import parse_args
from forebay_server.errors import StartupError
from tests.fakes.server_process import ServerProcess

PAGE = {"Origin": "https://app.example"}
ASKING = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
COMPLETIONS = "/v1/completions"


def test_no_browser_gets_in_by_default(server: ServerProcess) -> None:
    preflight = server.api(COMPLETIONS, headers=ASKING, method="OPTIONS")
    assert preflight.status == 405
    answer = server.api(COMPLETIONS, {"prompt": "x"}, PAGE)
    assert answer.status == 200
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_pages_of_an_allowed_origin_get_in_also_with_keys(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("secret\n")
    origins = ("--cors-allow-origin", "https://app.example", "https://other.example")
    server = start_server("--api-key-file", str(tmp_path / "keys"), *origins)
    preflight = server.api(COMPLETIONS, headers=ASKING, method="OPTIONS")
    assert preflight.status == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "authorization" in preflight.headers["Access-Control-Allow-Headers"].lower()
    refused = server.api(COMPLETIONS, {"prompt": "x"}, PAGE)
    assert refused.status == 401
    assert refused.headers["Access-Control-Allow-Origin"] == "https://app.example"
    allowed = server.api(COMPLETIONS, {"prompt": "x"}, {**PAGE, "Authorization": "Bearer secret"})
    assert allowed.status == 200
    assert allowed.headers["Access-Control-Allow-Origin"] == "https://app.example"
    stranger = {**ASKING, "Origin": "https://evil.example"}
    assert server.api(COMPLETIONS, headers=stranger, method="OPTIONS").status == 400


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Certificate and key for 127.0.0.1, signed by itself."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-out", str(files[0]), "-keyout", str(files[1])], check=True, capture_output=True)
    return files


def test_the_api_speaks_https_and_the_ops_port_does_not(
    start_server: Callable[..., ServerProcess], certificate: tuple[Path, Path]
) -> None:
    server = start_server("--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))
    url = f"https://127.0.0.1:{server.port}/v1/models"
    trusting = ssl.create_default_context(cafile=certificate[0])
    with urllib.request.urlopen(url, context=trusting) as response:
        assert response.status == 200
    with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
        urllib.request.urlopen(url)
    assert server.ops("/readyz").status == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-cert", "CERT"], "of no use without the other"),
        (["--tls-key", "KEY"], "of no use without the other"),
        (["--tls-cert", "CERT", "--tls-key", "CERT"], "--tls-key"),
        (["--tls-cert", "CERT", "--tls-key", "/nothing"], "No such file"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_a_bad_command_line(
    certificate: tuple[Path, Path], arguments: list[str], words: str
) -> None:
    files = {"CERT": str(certificate[0]), "KEY": str(certificate[1])}
    with pytest.raises(StartupError, match=words) as caught:
        parse_args(["--model", "m", *(files.get(argument, argument) for argument in arguments)])
    assert caught.value.exit_code == 2
