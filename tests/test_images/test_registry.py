"""What is in the registry is not pushed again."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hack.images.errors import ImageError
from hack.images.registry import has_manifest

STATUS_OF_TAG = {"there": 200, "broken": 500}


class Registry(BaseHTTPRequestHandler):
    """Answers as docker-registry does for one repository."""

    def do_HEAD(self) -> None:
        tag = self.path.removeprefix("/v2/forebay-server/manifests/")
        accepts = "application/vnd.oci.image.manifest.v1+json" in self.headers["Accept"]
        self.send_response(STATUS_OF_TAG.get(tag, 404) if accepts else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("tag", "there"), [("there", True), ("missing", False)])
def test_a_tag_is_there_or_not(registry: str, tag: str, there: bool) -> None:
    assert has_manifest(registry, "forebay-server", tag) is there


def test_no_proxy_is_asked_for_a_registry_on_this_machine(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert has_manifest(registry, "forebay-server", "there")


def test_a_failing_registry_is_an_error_and_not_an_absent_image(registry: str) -> None:
    with pytest.raises(ImageError, match="HTTP 500"):
        has_manifest(registry, "forebay-server", "broken")


def test_a_registry_that_is_not_there_says_so() -> None:
    with pytest.raises(ImageError, match="is the cluster up"):
        has_manifest("127.0.0.1:9", "forebay-server", "there")
