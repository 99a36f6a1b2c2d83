"""A small world for tests of reconcile: objects in dictionaries, a clock that is turned by hand, no API server."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from forebay_operator import names
from forebay_operator.actions import Action, Apply, Delete, Event, PatchStatus, Scale, SetDeletionCost
from forebay_operator.autoscale import History
from forebay_operator.facts.inspect_model import facts_of_config
from forebay_operator.failures import Failure
from forebay_operator.observed import Defaults, Observed
from forebay_operator.pod_views import view
from forebay_operator.reconcile import Outcome, reconcile
from forebay_operator.scraped import Scraped

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

SPEC: dict[str, Any] = {
    "replicas": 1,
    "suspend": False,
    "model": {"uri": "pvc://models/small.gguf"},
    "accelerator": {"profile": "cpu", "memory": "3Gi"},
    "context": {"maxModelLen": 2048},
    "kvBudget": {"concurrentSequences": 4},
}

FACTS = facts_of_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "config.json",
)


class World:
    """One InferenceService called `small` in namespace `test`, and what the operator makes of it."""

    def __init__(self, **spec: Any) -> None:
        self.now = START
        self.service: dict[str, Any] = {
            "metadata": {"namespace": "test", "name": "small", "uid": "uid-small", "generation": 1, "annotations": {}},
            "spec": {**copy.deepcopy(SPEC), **spec},
        }
        self.defaults = Defaults(engine_image="engine:1", operator_image="operator:1", image_pull_policy="IfNotPresent")
        self.profiles: dict[str, dict[str, Any]] = {}
        self.nodes: list[dict[str, str]] | None = []
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.scraped: dict[str, Scraped] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.history = History()
        self.problem: Failure | None = None
        self.happened: list[Event] = []
        self._uids = 0

    def observed(self) -> Observed:
        pods = [body for (kind, _), body in sorted(self.objects.items()) if kind == "Pod"]
        engines = [pod for pod in pods if pod["metadata"]["labels"][names.COMPONENT_LABEL] == "engine"]
        inspects = [pod for pod in pods if pod["metadata"]["labels"][names.COMPONENT_LABEL] == "inspect"]
        revisions = tuple(body for (kind, _), body in self.objects.items() if kind == "ControllerRevision")
        return Observed(
            now=self.now,
            service=self.service,
            defaults=self.defaults,
            profiles=self.profiles,
            nodes=None if self.nodes is None else tuple(self.nodes),
            deployment=self.objects.get(("Deployment", "small")),
            endpoint=self.objects.get(("Service", "small")),
            account=self.objects.get(("ServiceAccount", "small")),
            revisions=revisions,
            pods=tuple(
                view(pod, self.events.get(pod["metadata"]["name"], ()), self.scraped.get(pod["metadata"]["name"]))
                for pod in engines
            ),
            inspect_pods=tuple(inspects),
            inspect_views=tuple(view(pod, self.events.get(pod["metadata"]["name"], ()), None) for pod in inspects),
            history=self.history,
            apply_problem=self.problem,
        )

    def look(self) -> Outcome:
        """What reconcile wants now; nothing is done."""
        return reconcile(self.observed())

    def step(self) -> Outcome:
        """Reconcile once and do what it wants."""
        outcome = self.look()
        self.history = outcome.history
        for action in outcome.actions:
            self._do(action)
        return outcome

    def settle(self) -> None:
        """Reconcile until nothing is wanted any more."""
        for _ in range(5):
            if not self.step().actions:
                return
        raise AssertionError(f"reconcile does not come to rest: {self.look().actions}")

    def _do(self, action: Action) -> None:
        match action:
            case Apply(manifest):
                self.put(copy.deepcopy(manifest))
            case Delete(_, kind, name, uid):
                assert self.objects[kind, name]["metadata"]["uid"] == uid
                del self.objects[kind, name]
            case PatchStatus(status):
                self.service["status"] = copy.deepcopy(status)
            case Scale(replicas):
                self.edit(replicas=replicas)
            case SetDeletionCost(pod, cost):
                self.objects["Pod", pod]["metadata"]["annotations"][names.DELETION_COST_ANNOTATION] = cost
            case Event():
                self.happened.append(action)

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        """An object as the API server would store it."""
        key = (body["kind"], body["metadata"]["name"])
        if key in self.objects:
            body["metadata"]["uid"] = self.objects[key]["metadata"]["uid"]
        else:
            self._uids += 1
            body["metadata"]["uid"] = f"uid-{self._uids}"
        body["metadata"].setdefault("creationTimestamp", self.now.isoformat())
        self.objects[key] = body
        return body

    def edit(self, **spec: Any) -> None:
        """A user changes the spec."""
        self.service["spec"] = {**self.service["spec"], **spec}
        self.service["metadata"]["generation"] += 1

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def know_the_model(self) -> None:
        """As if an inspect pod had told the facts."""
        self.step()
        (pod,) = self.of("Pod", "inspect")
        self.end(pod, 0, FACTS.to_json())
        self.settle()

    def of(self, kind: str, component: str = "engine") -> list[dict[str, Any]]:
        return [
            body
            for (name, _), body in sorted(self.objects.items())
            if name == kind and body["metadata"]["labels"][names.COMPONENT_LABEL] == component
        ]

    def end(self, pod: dict[str, Any], code: int, message: str) -> None:
        """A pod's container has ended."""
        state = {"terminated": {"exitCode": code, "message": message, "finishedAt": self.now.isoformat()}}
        phase = "Succeeded" if code == 0 else "Failed"
        pod["status"] = {"phase": phase, "containerStatuses": [{"name": "c", "state": state}]}

    def start_pod(self, name: str, *, ready: bool = True, **status: Any) -> dict[str, Any]:
        """A pod of the Deployment's present template."""
        template = copy.deepcopy(self.objects["Deployment", "small"]["spec"]["template"])
        conditions = [{"type": "Ready", "status": str(ready)}]
        usual = {"phase": "Running", "conditions": conditions, "containerStatuses": [{"state": {"running": {}}}]}
        return self.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "test", **template["metadata"]},
                "spec": template["spec"],
                "status": {**usual, **status},
            }
        )

    def condition(self, kind: str) -> dict[str, Any]:
        found = [c for c in self.service["status"]["conditions"] if c["type"] == kind]
        return dict(found[0]) if found else {}
