"""What is known of the cluster: filled by listing, kept up to date by watch events, repaired by the next listing."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forebay_operator.kinds import Kind

Body = Mapping[str, Any]
ObjectKey = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


class Cache:
    """The latest known state of every watched object."""

    def __init__(self) -> None:
        self._bodies: dict[Kind, dict[ObjectKey, Body]] = defaultdict(dict)

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """One object; None when none is known."""
        return self._bodies[kind].get((namespace, name))

    def all(self, kind: Kind) -> Iterator[Body]:
        """Every known object of a kind."""
        return iter(self._bodies[kind].values())

    def put(self, kind: Kind, body: Body) -> bool:
        """Remember an object, unless something newer is known; whether it was news."""
        known = self._bodies[kind].get(_key(body))
        if known is not None and _version(body) <= _version(known) and _uid(body) == _uid(known):
            return False
        self._bodies[kind][_key(body)] = _labels_of(body) if kind.labels_only else body
        return not (kind.labels_only and known is not None and _labels(known) == _labels(body))

    def remove(self, kind: Kind, body: Body) -> None:
        """Forget an object that was deleted; not another one that has taken its name since."""
        known = self._bodies[kind].get(_key(body))
        if known is not None and _uid(known) == _uid(body):
            del self._bodies[kind][_key(body)]

    def replace(self, kind: Kind, namespace: str | None, bodies: Iterable[Body], list_version: str) -> bool:
        """Take over a complete listing of one namespace (None: of all); whether anything in it was news."""
        news = False
        listed = set()
        for body in bodies:
            listed.add(_key(body))
            news |= self.put(kind, body)
        for key, body in list(self._bodies[kind].items()):
            elsewhere = namespace is not None and kind.namespaced and key[0] != namespace
            if key not in listed and not elsewhere and _version(body) <= _number(list_version):
                del self._bodies[kind][key]
                news = True
        return news


def _key(body: Body) -> ObjectKey:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _labels(body: Body) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _labels_of(body: Body) -> Body:
    """An object with nothing but its identity and its labels."""
    kept = ("name", "uid", "resourceVersion", "labels")
    return {"metadata": {key: body["metadata"][key] for key in kept if key in body["metadata"]}}


def _uid(body: Body) -> str:
    return str(body["metadata"].get("uid", ""))


def _version(body: Body) -> int:
    return _number(body["metadata"].get("resourceVersion", ""))


def _number(version: str) -> int:
    """Resource versions of one kind compare as numbers (Kubernetes promises it since 1.35; etcd always did)."""
    return int(version) if version.isdecimal() else 0
