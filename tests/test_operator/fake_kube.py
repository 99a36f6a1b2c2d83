"""FakeKube: the operator's view of an API server, in memory."""

import copy
from collections.abc import Mapping
from typing import Any

from forebay_operator.errors import ApiError
from forebay_operator.kinds import INFERENCE_SERVICE, POD, Kind, kind_of
from forebay_operator.rights import Right

Body = dict[str, Any]


class FakeKube:
    """Stores what is applied, counts every write, fails where it is told to."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, str, str], Body] = {}
        self.writes: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.warnings: list[Body] = []
        self.fail: dict[str, ApiError] = {}
        """Error by `verb plural`, as in `apply deployments`."""
        self.forbidden: set[tuple[str, str]] = set()
        """Resource and verb."""
        self._version = 0

    def store(self, kind: Kind, body: Mapping[str, Any]) -> Body:
        """What the server would keep of an object."""
        self._version += 1
        key = (kind, body["metadata"].get("namespace", ""), body["metadata"]["name"])
        known = self.objects.get(key, {})
        metadata = {"uid": f"uid-{self._version}", **known.get("metadata", {}), **body["metadata"]}
        metadata |= {"resourceVersion": str(self._version), "creationTimestamp": "2026-01-02T03:04:05Z"}
        stored = {**known, **copy.deepcopy(dict(body)), "metadata": metadata}
        self.objects[key] = stored
        return stored

    def _write(self, verb: str, kind: Kind, name: str) -> None:
        if error := self.fail.get(f"{verb} {kind.plural}"):
            raise error
        self.writes.append(f"{verb} {kind.plural}/{name}")

    async def list_all(self, kind: Kind, namespace: str | None) -> tuple[list[Body], str]:
        if error := self.fail.get(f"list {kind.plural}"):
            raise error
        found = [body for (k, where, _), body in self.objects.items() if k == kind and namespace in (None, where)]
        return found, str(self._version)

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        return self.objects.get((kind, namespace, name))

    async def apply(self, manifest: Mapping[str, Any]) -> Body:
        kind = kind_of(manifest["apiVersion"], manifest["kind"])
        self._write("apply", kind, manifest["metadata"]["name"])
        return self.store(kind, manifest)

    async def apply_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> Body:
        self._write("status", INFERENCE_SERVICE, name)
        body = self.objects[INFERENCE_SERVICE, namespace, name]
        return self.store(INFERENCE_SERVICE, {**body, "status": copy.deepcopy(dict(status))})

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        self._write("scale", INFERENCE_SERVICE, name)
        body = self.objects[INFERENCE_SERVICE, namespace, name]
        self.store(INFERENCE_SERVICE, {**body, "spec": {**body["spec"], "replicas": replicas}})

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str]) -> Body:
        self._write("annotate", POD, name)
        return self.objects[POD, namespace, name]

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._write("delete", kind, name)
        self.objects.pop((kind, namespace, name), None)

    async def warnings_about(self, namespace: str, uid: str) -> list[Body]:
        return self.warnings

    async def create_event(self, about: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        self.events.append((kind, reason))

    async def may(self, right: Right, verb: str, namespace: str | None) -> bool:
        return (right.resource, verb) not in self.forbidden
