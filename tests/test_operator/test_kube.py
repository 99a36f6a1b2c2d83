"""What goes over the wire to the API server, and what its answers become."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from forebay_operator.errors import ApiError, GoneError, RefusedError
from forebay_operator.kinds import DEPLOYMENT, POD
from forebay_operator.kube import KubernetesApi
from forebay_operator.rights import Right


class Recorder:
    """Answers every request with what it was told, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], str, Any]] = []
        self.answers: list[tuple[int, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else None
        kind = request.headers.get("Content-Type", "")
        self.requests.append((request.method, request.path, dict(request.query), kind, body))
        status, answer = self.answers.pop(0) if self.answers else (200, {})
        return web.json_response(answer, status=status)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Recorder, KubernetesApi]]:
    recorder = Recorder()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorder.handle)
    async with TestServer(app) as running:
        library: Any = client
        configuration = library.Configuration()
        configuration.host = str(running.make_url("")).rstrip("/")
        api = KubernetesApi(library.ApiClient(configuration))
        yield recorder, api
        await api.close()


async def test_apply_is_server_side_by_one_manager(server: tuple[Recorder, KubernetesApi]) -> None:
    recorder, api = server
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}}
    await api.apply(manifest)
    (request,) = recorder.requests
    assert request == (
        "PATCH",
        "/apis/apps/v1/namespaces/n/deployments/d",
        {"fieldManager": "forebay-operator", "force": "true"},
        "application/apply-patch+yaml",
        manifest,
    )


async def test_status_goes_to_its_subresource(server: tuple[Recorder, KubernetesApi]) -> None:
    recorder, api = server
    await api.apply_status("n", "s", {"replicas": 1})
    method, path, _, kind, body = recorder.requests[0]
    assert (method, kind) == ("PATCH", "application/apply-patch+yaml")
    assert path == "/apis/serving.forebay.dev/v1alpha1/namespaces/n/inferenceservices/s/status"
    assert body["status"] == {"replicas": 1}


async def test_scaling_has_a_manager_of_its_own(server: tuple[Recorder, KubernetesApi]) -> None:
    recorder, api = server
    await api.scale("n", "s", 3)
    _, path, query, _, body = recorder.requests[0]
    assert path.endswith("/inferenceservices/s/scale")
    assert (query["fieldManager"], body) == ("forebay-autoscaler", {"spec": {"replicas": 3}})


async def test_deletes_name_the_very_object_and_how(server: tuple[Recorder, KubernetesApi]) -> None:
    recorder, api = server
    recorder.answers = [(409, {"message": "the UID in the precondition does not match"})]
    await api.delete(POD, "n", "p", "uid-1")
    assert recorder.requests[0][4] == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-1"}}


async def test_listings_follow_their_pages_and_ask_for_our_labels(server: tuple[Recorder, KubernetesApi]) -> None:
    recorder, api = server
    recorder.answers = [
        (200, {"metadata": {"continue": "next", "resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}),
        (200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    items, version = await api.list_all(DEPLOYMENT, None)
    assert [item["metadata"]["name"] for item in items] == ["a", "b"]
    assert (items[0]["kind"], version) == ("Deployment", "7")
    assert recorder.requests[0][2]["labelSelector"] == "app.kubernetes.io/managed-by=forebay-operator"
    assert recorder.requests[1][2]["continue"] == "next"


async def test_rights_are_asked_for_with_their_subresource(server: tuple[Recorder, KubernetesApi]) -> None:
    recorder, api = server
    recorder.answers = [(201, {"status": {"allowed": False}})]
    assert not await api.may(Right("g", "things/status", ("patch",), "why"), "patch", "n")
    asked = recorder.requests[0][4]["spec"]["resourceAttributes"]
    assert asked == {"group": "g", "resource": "things", "subresource": "status", "verb": "patch", "namespace": "n"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, GoneError), (403, RefusedError), (422, RefusedError), (409, ApiError), (429, ApiError), (503, ApiError)],
)
async def test_answers_become_errors_by_what_helps(
    server: tuple[Recorder, KubernetesApi], status: int, kind: type[ApiError]
) -> None:
    recorder, api = server
    recorder.answers = [(status, {"message": "because"})]
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "d", "namespace": "n"}}
    with pytest.raises(ApiError, match="because") as raised:
        await api.apply(manifest)
    assert type(raised.value) is kind
    assert raised.value.status == status


async def test_what_is_not_there_is_none(server: tuple[Recorder, KubernetesApi]) -> None:
    recorder, api = server
    recorder.answers = [(404, {"message": "not found"})]
    assert await api.get(DEPLOYMENT, "n", "d") is None


async def test_no_answer_is_an_error_that_may_pass() -> None:
    library: Any = client
    configuration = library.Configuration()
    configuration.host = "http://127.0.0.1:9"
    api = KubernetesApi(library.ApiClient(configuration))
    with pytest.raises(ApiError, match="GET /apis/apps/v1") as raised:
        await api.list_all(DEPLOYMENT, None)
    assert raised.value.status is None
    await api.close()
