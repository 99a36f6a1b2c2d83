"""kopf's handlers, each of one line: they put news into our cache and queue, and leave no trace on any object.

Only `on.startup`, `on.login` and `on.event` are used: these need no finalizer and no annotation, and kopf
never retries them. They are coroutines, because kopf runs plain functions in other threads.
"""

from collections.abc import Sequence
from typing import Any

import kopf

from forebay_operator import kinds
from forebay_operator.controller import Controller
from forebay_operator.kube import in_cluster
from forebay_operator.names import OPERATOR
from forebay_operator.resync import Resync

WATCH_SECONDS = 300
"""A watch is opened anew after this long, so that one that was lost silently does not stay lost."""


def build_registry(controller: Controller, resync: Resync, watched: Sequence[kinds.Kind]) -> kopf.OperatorRegistry:
    """All handlers, in a registry of their own."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        _configure(settings, watched)

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) if in_cluster() else kopf.login_with_kubeconfig(**kwargs)

    for kind in watched:
        _watch(registry, kind, controller, resync)
    return registry


def _watch(registry: kopf.OperatorRegistry, kind: kinds.Kind, controller: Controller, resync: Resync) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"saw-{kind.plural}")
    async def saw(event: kopf.RawEvent, **_: Any) -> None:
        resync.saw_event(kind)
        controller.saw(kind, event["object"], deleted=event["type"] == "DELETED")


def _configure(settings: kopf.OperatorSettings, watched: Sequence[kinds.Kind]) -> None:
    settings.posting.enabled = False  # our own events, on transitions only
    settings.scanning.disabled = True  # the kinds are there when we start: no rights on CRDs and namespaces are needed
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.connect_timeout = 15
    settings.networking.request_timeout = 30
    settings.persistence.finalizer = f"{OPERATOR}/unused"
    for kind in watched:
        if kind.label_selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.label_selector
