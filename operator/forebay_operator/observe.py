"""Gathers what reconcile may look at: from the cache, from the pods, and only where these do not know from the API."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from forebay_operator import kinds, names
from forebay_operator.autoscale import History
from forebay_operator.cache import Cache
from forebay_operator.failures import Failure
from forebay_operator.kube import Kube
from forebay_operator.observed import Defaults, Observed, is_owned, named_profile
from forebay_operator.pod_views import PodView, view
from forebay_operator.profiles import find_profile
from forebay_operator.resolved import Owner
from forebay_operator.scrape import Scraper, Target
from forebay_operator.scraped import Scraped

Body = Mapping[str, Any]


class Observer:
    """Looks at one service at a time."""

    def __init__(
        self, cache: Cache, kube: Kube, scraper: Scraper, defaults: Defaults, *, reads_nodes: bool = True
    ) -> None:
        self._cache = cache
        self._reads_nodes = reads_nodes
        self._kube = kube
        self._scraper = scraper
        self._defaults = defaults

    async def observe(self, service: Body, now: datetime, history: History, apply_problem: Failure | None) -> Observed:
        """Everything about one service at this moment."""
        metadata = service["metadata"]
        owner = Owner(metadata["namespace"], metadata["name"], metadata["uid"])
        deployment = await self._child(kinds.DEPLOYMENT, owner)
        pods = self._engine_pods(owner, deployment)
        inspect_pods = tuple(
            sorted(
                (pod for pod in self._labelled(kinds.POD, owner, "inspect") if is_owned(pod, owner)),
                key=lambda pod: str(pod["metadata"]["name"]),
            )
        )
        profiles = {body["metadata"]["name"]: body for body in self._cache.all(kinds.ACCELERATOR_PROFILE)}
        answers = await self._scraper.ask(_targets(pods))
        scarce = _resource_name(service, profiles)
        return Observed(
            now=now,
            service=service,
            defaults=self._defaults,
            profiles=profiles,
            nodes=node_labels(self._cache) if self._reads_nodes else None,
            deployment=deployment,
            endpoint=await self._child(kinds.SERVICE, owner),
            account=await self._child(kinds.SERVICE_ACCOUNT, owner),
            revisions=tuple(
                body for body in self._labelled(kinds.CONTROLLER_REVISION, owner, "engine") if is_owned(body, owner)
            ),
            pods=tuple([await self._view(pod, answers.get(pod["metadata"]["uid"]), scarce) for pod in pods]),
            inspect_pods=inspect_pods,
            inspect_views=tuple([await self._view(pod, None, scarce) for pod in inspect_pods]),
            history=history,
            apply_problem=apply_problem,
        )

    async def _child(self, kind: kinds.Kind, owner: Owner) -> Body | None:
        """The child of that kind; one that is not known may still be there, without our labels, as somebody else's."""
        known = self._cache.get(kind, owner.namespace, owner.name)
        return known if known is not None else await self._kube.get(kind, owner.namespace, owner.name)

    def _labelled(self, kind: kinds.Kind, owner: Owner, component: str) -> list[Body]:
        wanted = {names.SERVICE_LABEL: owner.name, names.COMPONENT_LABEL: component}
        return [
            body
            for body in self._cache.all(kind)
            if body["metadata"].get("namespace") == owner.namespace
            and wanted.items() <= (body["metadata"].get("labels") or {}).items()
        ]

    def _engine_pods(self, owner: Owner, deployment: Body | None) -> list[Body]:
        """Pods that descend from our Deployment, by uid over its ReplicaSets."""
        if deployment is None or not is_owned(deployment, owner):
            return []
        sets = {
            body["metadata"]["uid"]
            for body in self._labelled(kinds.REPLICA_SET, owner, "engine")
            if _controller_uid(body) == deployment["metadata"]["uid"]
        }
        pods = [pod for pod in self._labelled(kinds.POD, owner, "engine") if _controller_uid(pod) in sets]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    async def _view(self, pod: Body, scraped: Scraped | None, scarce: str) -> PodView:
        first = view(pod, (), scraped, scarce)
        if first.phase != "pending" or first.failure is not None:
            return first
        # It waits and its object does not say why: a volume that cannot be mounted stands only in the events.
        events = await self._kube.warnings_about(pod["metadata"]["namespace"], pod["metadata"]["uid"])
        return view(pod, events, scraped, scarce)


def node_labels(cache: Cache) -> tuple[Mapping[str, str], ...]:
    """Labels of every known node."""
    return tuple(node["metadata"].get("labels") or {} for node in cache.all(kinds.NODE))


def _controller_uid(body: Body) -> str | None:
    references = body["metadata"].get("ownerReferences") or ()
    return next((str(reference["uid"]) for reference in references if reference.get("controller")), None)


def _targets(pods: list[Body]) -> list[Target]:
    return [
        Target(pod["metadata"]["uid"], pod["status"]["podIP"], ready=view(pod, (), None).ready)
        for pod in pods
        if pod.get("status", {}).get("podIP") and pod["status"].get("phase") == "Running"
    ]


def _resource_name(service: Body, profiles: Mapping[str, Body]) -> str:
    """Name of the accelerator's resource, to tell a wait for accelerators from other waits; empty when not known."""
    name = named_profile(service) or (service.get("status") or {}).get("acceleratorProfile", "")
    if name in profiles:
        return str(profiles[name].get("spec", {}).get("resourceName", ""))
    found = find_profile(name, {})
    return found.accelerator.resource_name if found else ""
