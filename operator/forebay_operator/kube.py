"""The only module that talks to the API server: a Protocol, and its one implementation on kubernetes.aio."""

import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import yaml
from kubernetes.aio import client, config

from forebay_operator.errors import ApiError, GoneError, RefusedError
from forebay_operator.kinds import EVENT, INFERENCE_SERVICE, POD, Kind, kind_of
from forebay_operator.names import AUTOSCALER, OPERATOR
from forebay_operator.rights import Right

TIMEOUT_SECONDS = 15
"""Of every call; the library's own default is five minutes."""
PAGE_SIZE = 500

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"

Body = dict[str, Any]


class Kube(Protocol):
    """What the operator wants of the API server. Every call raises an ApiError when it fails."""

    async def list_all(self, kind: Kind, namespace: str | None) -> tuple[list[Body], str]:
        """Every watched object of a kind, and the resource version of the list."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """One object; None when it is not there."""

    async def apply(self, manifest: Mapping[str, Any]) -> Body:
        """Server-side apply; an identical one changes nothing."""

    async def apply_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> Body:
        """Server-side apply of a service's status."""

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Write a service's replicas through `/scale`, under the autoscaler's name."""

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str]) -> Body:
        """Set annotations of a pod."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete one object in the background, if it is still this very one."""

    async def warnings_about(self, namespace: str, uid: str) -> list[Body]:
        """The warning events about one object, the latest first."""

    async def create_event(self, about: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        """Tell people something about an object; `kind` is Normal or Warning."""

    async def may(self, right: Right, verb: str, namespace: str | None) -> bool:
        """Whether the operator itself may do something; namespace None: everywhere."""


class KubernetesApi:
    """The one implementation of `Kube`."""

    def __init__(self, api: Any) -> None:
        self._api = api  # Any: the library's generic calls carry no types

    @classmethod
    async def connect(cls) -> "KubernetesApi":
        """A client with the pod's service account, or else with the kubeconfig.

        Raises:
            ApiError: there is neither, or the kubeconfig cannot be used.
        """
        library: Any = config
        try:
            if in_cluster():
                library.load_incluster_config()
            else:
                await library.load_kube_config(config_file=_kubeconfig())
        except (config.ConfigException, yaml.YAMLError, OSError) as error:
            raise ApiError(f"no access to a cluster: {error}") from error
        return cls(client.ApiClient())

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def list_all(self, kind: Kind, namespace: str | None) -> tuple[list[Body], str]:
        """See Kube."""
        items: list[Body] = []
        query = [("limit", str(PAGE_SIZE))]
        if kind.label_selector:
            query.append(("labelSelector", kind.label_selector))
        token = ""
        while True:
            page = await self._call("GET", kind.path(namespace), [*query, *([("continue", token)] if token else [])])
            items += [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in page.get("items") or ()]
            token = page["metadata"].get("continue", "")
            if not token:
                return items, page["metadata"].get("resourceVersion", "")

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """See Kube."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except GoneError:
            return None

    async def apply(self, manifest: Mapping[str, Any]) -> Body:
        """See Kube."""
        metadata = manifest["metadata"]
        path = kind_of(manifest["apiVersion"], manifest["kind"]).path(metadata["namespace"], metadata["name"])
        return await self._apply(path, manifest)

    async def apply_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> Body:
        """See Kube."""
        kind = INFERENCE_SERVICE
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, "namespace": namespace},
            "status": status,
        }
        return await self._apply(kind.path(namespace, name, "status"), body)

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """See Kube."""
        path = INFERENCE_SERVICE.path(namespace, name, "scale")
        await self._call("PATCH", path, [("fieldManager", AUTOSCALER)], {"spec": {"replicas": replicas}}, _MERGE)

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str]) -> Body:
        """See Kube."""
        body = {"metadata": {"annotations": dict(annotations)}}
        return await self._call("PATCH", POD.path(namespace, name), [("fieldManager", OPERATOR)], body, _MERGE)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """See Kube."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", kind.path(namespace, name), body=body)
        except GoneError:
            return

    async def warnings_about(self, namespace: str, uid: str) -> list[Body]:
        """See Kube."""
        query = [("fieldSelector", f"involvedObject.uid={uid},type=Warning"), ("limit", "50")]
        items = (await self._call("GET", EVENT.path(namespace), query)).get("items") or []
        return sorted(items, key=lambda event: event.get("lastTimestamp") or "", reverse=True)

    async def create_event(self, about: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        """See Kube."""
        metadata = about["metadata"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": INFERENCE_SERVICE.api_version,
                "kind": INFERENCE_SERVICE.kind,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": OPERATOR},
            "reportingComponent": OPERATOR,
            "reportingInstance": socket.gethostname(),
        }
        await self._call("POST", EVENT.path(metadata["namespace"]), body=event)

    async def may(self, right: Right, verb: str, namespace: str | None) -> bool:
        """See Kube."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {"group": right.group, "resource": resource, "subresource": subresource, "verb": verb}
        if namespace and not right.cluster_scoped:
            attributes["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        review = await self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
        return bool(review["status"]["allowed"])

    async def _apply(self, path: str, manifest: Mapping[str, Any]) -> Body:
        return await self._call("PATCH", path, [("fieldManager", OPERATOR), ("force", "true")], manifest, _APPLY)

    async def _call(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> Body:
        request = await self._api.param_serialize(
            method,
            path,
            query_params=query or [],
            header_params={"Accept": _JSON, "Content-Type": content_type},
            body=dict(body) if body is not None else None,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            text = await response.read()
        except TimeoutError as error:
            raise ApiError(f"{method} {path}: no answer within {TIMEOUT_SECONDS} s") from error
        except aiohttp.ClientError as error:
            raise ApiError(f"{method} {path}: {error}") from error
        if 200 <= response.status < 300:
            result: Body = json.loads(text)
            return result
        raise _error(method, path, response.status, text)


def in_cluster() -> bool:
    """Whether this process runs in a pod and was given no kubeconfig."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _kubeconfig() -> str:
    """The file or files that KUBECONFIG names now: the library looks only when it is imported.

    Raises:
        ApiError: none of them is there.
    """
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(Path(part).is_file() for part in named.split(os.pathsep) if part):
        raise ApiError(f"no access to a cluster: not in a pod, and there is no kubeconfig at {named}")
    return named


def _error(method: str, path: str, status: int, text: bytes) -> ApiError:
    try:
        answer = json.loads(text)
        message = str(answer.get("message") or answer)
    except ValueError:
        message = text.decode(errors="replace")[:200]
    told = f"{method} {path}: {status}: {message}"
    if status == 404 or (status == 409 and method == "DELETE"):  # 409: the uid is another one
        return GoneError(told, status)
    if status in (401, 408, 409, 429) or status >= 500:
        return ApiError(told, status)
    return RefusedError(told, status)
