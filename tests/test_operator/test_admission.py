"""What is refused when it is applied, what is let in, and what is never in the way."""

import copy
from typing import Any

import pytest

from forebay_operator import kinds, names
from forebay_operator.admission import Verdict, answer
from forebay_operator.cache import Cache
from forebay_operator.failures import Failure
from forebay_operator.observed import Defaults
from forebay_operator.webhook import WebhookServer
from tests.test_operator.world import SPEC, World

TOO_MUCH: dict[str, Any] = {"kvBudget": {"tokens": 100_000_000}}
PUBLISHED = "meta-llama/Llama-3.3-70B-Instruct"


class Gate:
    """The webhook of an operator that knows one service, `small`, whose model has been looked at."""

    def __init__(self) -> None:
        self.world = World()
        self.world.know_the_model()
        self.cache = Cache()
        self.cache.put(kinds.INFERENCE_SERVICE, self.world.service)
        defaults = Defaults(engine_image="engine:1", operator_image="operator:1", image_pull_policy="IfNotPresent")
        self.server = WebhookServer(self.cache, defaults)

    def create(self, name: str = "new", namespace: str = "test", **spec: Any) -> Verdict:
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": {**copy.deepcopy(SPEC), **spec}}
        return self.ask("CREATE", body)

    def update(self, old: dict[str, Any], **spec: Any) -> Verdict:
        return self.ask("UPDATE", {**old, "spec": {**old["spec"], **spec}}, old)

    def ask(self, operation: str, new: dict[str, Any] | None, old: dict[str, Any] | None = None) -> Verdict:
        metadata = (new or old or {})["metadata"]
        request = {"uid": "1", "operation": operation, "object": new, "oldObject": old}
        return self.server.verdict({**request, "name": metadata["name"], "namespace": metadata["namespace"]})


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_what_cannot_fit_is_refused_with_the_text_that_the_status_would_have(gate: Gate) -> None:
    verdict = gate.create(**TOO_MUCH)
    assert verdict.refusal is not None
    world = World(**TOO_MUCH)
    world.know_the_model()
    said = world.condition("PlanFeasible")
    assert (verdict.refusal.reason, verdict.refusal.message) == (said["reason"], said["message"])


def test_what_fits_is_let_in_without_a_word(gate: Gate) -> None:
    assert gate.create() == Verdict()


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"uri": "pvc://models/other.gguf"}},
        {"model": {"uri": "pvc://models/small.gguf", "revision": "abc"}},
    ],
)
def test_a_model_that_nobody_has_looked_at_is_let_in(gate: Gate, change: dict[str, Any]) -> None:
    assert gate.create(**TOO_MUCH, **change) == Verdict()


def test_a_claim_of_the_same_name_in_another_namespace_is_another_model(gate: Gate) -> None:
    assert gate.create(namespace="other", **TOO_MUCH) == Verdict()


def test_a_profile_that_is_not_there_may_still_come(gate: Gate) -> None:
    assert gate.create(accelerator={"profile": "h999"}, **TOO_MUCH) == Verdict()


def test_a_spec_that_makes_no_sense_is_refused_with_the_field(gate: Gate) -> None:
    verdict = gate.create(scaling={"mode": "QueueDepth", "minReplicas": 3, "maxReplicas": 1})
    assert verdict.refusal is not None
    assert verdict.refusal.reason == "InvalidSpec"
    assert "spec.scaling" in verdict.refusal.message


def test_a_change_is_judged_by_the_services_own_facts(gate: Gate) -> None:
    assert gate.update(gate.world.service, replicas=5) == Verdict()
    refused = gate.update(gate.world.service, **TOO_MUCH)
    assert refused.refusal is not None


UNFIT: dict[str, Any] = {**SPEC, **TOO_MUCH}


@pytest.mark.parametrize(
    "change", [{"replicas": 3}, {"suspend": True}, {"rollout": {"strategy": "Surge"}}, {"quantization": {}}]
)
def test_what_changes_no_pod_is_never_blocked(gate: Gate, change: dict[str, Any]) -> None:
    old = {**gate.world.service, "spec": UNFIT}
    assert gate.update(old, **change) == Verdict()
    assert gate.update(old, context={"maxModelLen": 1024}).refusal is not None


def test_metadata_status_and_deletes_are_never_blocked(gate: Gate) -> None:
    old = {**gate.world.service, "spec": UNFIT}
    labelled = {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    assert gate.ask("UPDATE", labelled, old) == Verdict()
    assert gate.ask("DELETE", None, old) == Verdict()
    going = {**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-02T03:04:05Z"}}
    assert gate.ask("UPDATE", {**going, "spec": {**UNFIT, "context": {"maxModelLen": 1024}}}, old) == Verdict()


def test_an_old_object_that_became_invalid_may_still_be_labelled(gate: Gate) -> None:
    old = {**gate.world.service, "spec": {**SPEC, "gone": "field"}}
    assert gate.ask("UPDATE", {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}, old) == Verdict()


def test_going_back_to_a_spec_that_has_run_is_not_blocked(gate: Gate) -> None:
    (kept,) = [body for (kind, _), body in gate.world.objects.items() if kind == "ControllerRevision"]
    other = {**gate.world.service, "spec": {**SPEC, "drain": {"timeout": "1m"}}}
    other["status"] = {"model": {**other["status"]["model"], "facts": "{}"}}  # nothing could be planned from this
    assert gate.update(other, drain=None).refusal is not None
    kept["metadata"]["resourceVersion"] = "9"
    assert kept["metadata"]["labels"][names.SERVICE_LABEL] == "small"
    gate.cache.put(kinds.CONTROLLER_REVISION, kept)
    assert gate.update(other, drain=None) == Verdict()


@pytest.mark.parametrize("folder", [PUBLISHED, f"hub/{PUBLISHED.lower()}"])
def test_a_published_model_by_its_folders_name_is_a_warning_because_the_name_may_lie(gate: Gate, folder: str) -> None:
    verdict = gate.create(model={"uri": f"pvc://models/{folder}"})
    assert verdict.refusal is None
    assert verdict.warning is not None
    assert "as published" in verdict.warning
    assert any(character.isdigit() for character in verdict.warning)


def test_a_published_model_that_fits_is_no_warning(gate: Gate) -> None:
    verdict = gate.create(
        model={"uri": f"pvc://models/{PUBLISHED}"}, accelerator={"profile": "h100-80gb"}, context={"maxModelLen": 8192}
    )
    assert verdict == Verdict()


def test_the_answer_is_as_the_api_server_reads_it() -> None:
    yes = answer("7", Verdict(warning="w" * 5000))["response"]
    assert (yes["uid"], yes["allowed"], len(yes["warnings"][0])) == ("7", True, 1024)
    no = answer("8", Verdict(refusal=Failure("DoesNotFit", "too large")))["response"]
    assert (no["allowed"], no["status"]["code"], no["status"]["message"]) == (False, 422, "DoesNotFit: too large")
