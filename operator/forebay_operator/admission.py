"""Whether an InferenceService may be stored: the checks of reconcile, made before anything runs. Pure.

Only what is certain is refused: a spec that makes no sense, and a plan that cannot fit a model whose facts are known. A
reference that is not there may still come, and a model nobody has looked at is let in. A published model that only the
folder's name tells of is worth a warning. Deletes, and changes that leave pods as they are, always pass.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.catalogue.models import known_model, published_name
from forebay_operator.failures import Failure
from forebay_operator.observed import Body, Observed
from forebay_operator.planning import rendered_part
from forebay_operator.resolve import model_status, resolve

MAX_WARNING_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request."""

    refusal: Failure | None = None
    """None: let in."""
    warning: str | None = None
    """Shown by kubectl beside an acceptance."""


def judge(request: Mapping[str, Any], observed: Observed, services: Iterable[Body]) -> Verdict:
    """The verdict on one admission request.

    Args:
        request: `request` of an AdmissionReview.
        observed: the object of the request, with profiles and its kept revisions; nothing else of it is looked at.
        services: all known services; one in the same namespace may have had the same model looked at already.
    """
    if not _changes_pods(request):
        return Verdict()
    resolution = resolve(_with_facts(observed, services))
    problem = resolution.spec_problem
    if problem and resolution.spec is not None and resolution.profile is None:
        return Verdict(warning=f"{problem.reason}: {problem.message}")  # nodes come and go
    if problem := problem or resolution.plan_problem:
        return Verdict(refusal=problem)
    if resolution.spec is None or resolution.model is not None:
        return Verdict()
    return _published(observed, resolution.spec)


def answer(uid: str, verdict: Verdict) -> dict[str, Any]:
    """The AdmissionReview that goes back."""
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.refusal is None}
    if verdict.refusal is not None:
        message = f"{verdict.refusal.reason}: {verdict.refusal.message}"
        response["status"] = {"code": 422, "reason": "Invalid", "message": message}
    if verdict.warning is not None:
        response["warnings"] = [verdict.warning[:MAX_WARNING_CHARS]]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _changes_pods(request: Mapping[str, Any]) -> bool:
    """Whether the request asks for other pods than before: only then can it be wrong in a way that it was not yet."""
    if request.get("operation") not in ("CREATE", "UPDATE") or request.get("subResource"):
        return False
    new, old = request.get("object") or {}, request.get("oldObject") or {}
    if "deletionTimestamp" in new.get("metadata", {}):
        return False
    return not old or _asked(new) != _asked(old)


def _asked(body: Body) -> Any:
    spec = body.get("spec", {})
    try:
        return rendered_part(InferenceServiceSpec.model_validate(spec))
    except ValidationError:
        return spec


def _with_facts(observed: Observed, services: Iterable[Body]) -> Observed:
    """The object as if its model had been looked at, where that has happened for another service."""
    model = observed.service.get("spec", {}).get("model", {})
    wanted = (model.get("uri"), model.get("revision"))
    for body in (observed.service, *services):
        known = (body.get("status") or {}).get("model")
        here = body["metadata"].get("namespace") == observed.owner.namespace
        if known and here and (known.get("uri"), known.get("revision")) == wanted:
            return replace(observed, service={**observed.service, "status": {"model": known}})
    return observed


def _published(observed: Observed, spec: InferenceServiceSpec) -> Verdict:
    name = published_name(spec.model.uri)
    facts = known_model(name) if name else None
    if facts is None:
        return Verdict()
    model = model_status(spec, facts).model_dump(mode="json", by_alias=True, exclude_none=True)
    problem = resolve(replace(observed, service={**observed.service, "status": {"model": model}})).plan_problem
    if problem is None:
        return Verdict()
    return Verdict(warning=f"if this is {name} as published: {problem.reason}: {problem.message}")
