"""From what was observed to what should run: spec checked, references found, plan made, template rendered. Pure."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from forebay_operator import names
from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.api.status import EngineRefusal, ModelStatus
from forebay_operator.facts import FactsError, ModelFacts
from forebay_operator.failures import REFERENCE_REASONS, Failure, terminated
from forebay_operator.node_profiles import profile_of_nodes
from forebay_operator.observed import Body, Observed
from forebay_operator.planner import Refusal
from forebay_operator.planner.errors import RequestError
from forebay_operator.planner.plan import plan
from forebay_operator.planning import plan_request, revision_of
from forebay_operator.pods import pod_template
from forebay_operator.profiles import FoundProfile, find_profile, known_names
from forebay_operator.resolved import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The pods of one revision."""

    revision: str
    template: dict[str, Any]
    plan: dict[str, Any]
    is_new: bool
    """No ControllerRevision keeps it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """How far the way from spec to pods could be gone; None marks the steps that were not reached."""

    spec: InferenceServiceSpec | None = None
    """None: it does not have the form of its type."""
    spec_problem: Failure | None = None
    profile: FoundProfile | None = None
    reference_problem: Failure | None = None
    model: ModelStatus | None = None
    inspect_problem: Failure | None = None
    """Why the model cannot be looked at, where nothing that the spec refers to is to blame."""
    plan_problem: Failure | None = None
    rendered: Rendered | None = None
    refusal: EngineRefusal | None = None
    """How often the engine has refused what was rendered."""


def resolve(observed: Observed) -> Resolution:
    """Go the way as far as it leads."""
    try:
        spec = InferenceServiceSpec.model_validate(observed.service.get("spec", {}))
    except ValidationError as error:
        return Resolution(spec_problem=Failure("InvalidSpec", _problems(error, "spec")))
    name = spec.accelerator.profile if spec.accelerator else _profile_of_nodes(spec, observed)
    if isinstance(name, Failure):
        return Resolution(spec=spec, spec_problem=name)
    try:
        profile = find_profile(name, observed.profiles)
    except ValidationError as error:
        message = f"AcceleratorProfile {name}: {_problems(error, 'spec')}"
        return Resolution(spec=spec, reference_problem=Failure("InvalidAcceleratorProfile", message))
    if profile is None:
        known = ", ".join(known_names(observed.profiles))
        message = f"there is no AcceleratorProfile {name}, and none is built in; known: {known}"
        return Resolution(spec=spec, reference_problem=Failure("AcceleratorProfileNotFound", message))
    model = known_model(spec, observed)
    restarted_at = observed.service["metadata"].get("annotations", {}).get(names.RESTART_ANNOTATION)
    revision = revision_of(spec, profile.identity, restarted_at)
    if kept := kept_revision(revision, observed.revisions):
        return Resolution(spec=spec, profile=profile, model=model, rendered=kept)
    if model is None:
        return _without_facts(spec, profile, observed)
    return _plan(spec, profile, model, revision, observed)


def _profile_of_nodes(spec: InferenceServiceSpec, observed: Observed) -> str | Failure:
    """The accelerator of a spec that names none."""
    selector = (spec.pod_template and spec.pod_template.node_selector) or {}
    kept = observed.status.get("acceleratorProfile")
    return profile_of_nodes(observed.nodes, observed.profiles, selector, None if kept == "cpu" else kept)


def known_model(spec: InferenceServiceSpec, observed: Observed) -> ModelStatus | None:
    """The facts of the spec's model: from the status, or else from an inspect pod that has just finished."""
    cached = observed.status.get("model")
    if cached and cached.get("uri") == spec.model.uri and cached.get("revision") == spec.model.revision:
        return ModelStatus.model_validate(cached)
    for pod in wanted_inspect_pods(spec, observed):
        state = _terminated(pod)
        if state and state.get("exitCode") == 0:
            try:
                facts = ModelFacts.from_json(state.get("message", ""))
            except FactsError:
                return None
            return model_status(spec, facts)
    return None


def model_status(spec: InferenceServiceSpec, facts: ModelFacts) -> ModelStatus:
    """Facts in the form in which the status keeps them."""
    return ModelStatus(
        uri=spec.model.uri,
        revision=spec.model.revision,
        architecture=facts.architecture,
        num_parameters=facts.num_parameters,
        max_positions=facts.max_positions,
        checkpoint_format=facts.checkpoint.format,
        facts=facts.to_json(),
    )


def wanted_inspect_pods(spec: InferenceServiceSpec, observed: Observed) -> list[Body]:
    """Inspect pods of the spec's model, the latest attempt first; those of another model do not count."""
    owner = observed.owner
    pods = [
        pod
        for pod in observed.inspect_pods
        if pod["metadata"]["name"]
        == names.inspect_pod_name(owner.name, spec.model.uri, spec.model.revision, attempt_of(pod))
    ]
    return sorted(pods, key=attempt_of, reverse=True)


def attempt_of(pod: Body) -> int:
    """Which attempt an inspect pod is."""
    text = pod["metadata"].get("annotations", {}).get(names.ATTEMPT_ANNOTATION, "1")
    return int(text) if text.isdecimal() else 1


def _terminated(pod: Body) -> dict[str, Any] | None:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    state: dict[str, Any] | None = statuses[0].get("state", {}).get("terminated")
    return state


def _without_facts(spec: InferenceServiceSpec, profile: FoundProfile, observed: Observed) -> Resolution:
    """What the inspect pods say of why there are no facts; nothing while one still runs."""
    failure: Failure | None = None
    if latest := next(iter(wanted_inspect_pods(spec, observed)), None):
        view = next(view for view in observed.inspect_views if view.uid == latest["metadata"]["uid"])
        failure = view.failure
        state = _terminated(latest)
        if state and state.get("exitCode") == 0:
            failure = Failure("UnsupportedModel", "the inspect pod's answer could not be read")
        elif state and (failure := terminated(state)) and failure.reason == "InvalidConfiguration":
            failure = Failure("UnsupportedModel", failure.message)
    if failure and failure.reason == "UnsupportedModel":
        return Resolution(spec=spec, profile=profile, plan_problem=failure)
    if failure and failure.reason not in REFERENCE_REASONS:
        return Resolution(spec=spec, profile=profile, inspect_problem=failure)
    return Resolution(spec=spec, profile=profile, reference_problem=failure)


def _plan(
    spec: InferenceServiceSpec, profile: FoundProfile, model: ModelStatus, revision: str, observed: Observed
) -> Resolution:
    found = Resolution(spec=spec, profile=profile, model=model)
    try:
        facts = ModelFacts.from_json(model.facts)
        answer = plan(plan_request(spec, facts, profile.accelerator))
    except RequestError as error:
        return Resolution(spec=spec, profile=profile, model=model, spec_problem=Failure("InvalidSpec", str(error)))
    except FactsError as error:
        return Resolution(spec=spec, profile=profile, model=model, plan_problem=Failure(error.reason, error.message))
    if isinstance(answer, Refusal):
        message = "; ".join([answer.message, *(f"would fit: {change}" for change in answer.suggestions[:3])])
        return Resolution(spec=spec, profile=profile, model=model, plan_problem=Failure(answer.reason, message))
    template = pod_template(
        Resolved(
            owner=observed.owner,
            spec=spec,
            accelerator=profile.accelerator,
            placement=profile.placement,
            plan=answer,
            default_image=observed.defaults.engine_image,
            image_pull_policy=observed.defaults.image_pull_policy,
            revision=revision,
        )
    )
    rendered = Rendered(revision=revision, template=template, plan=answer.to_status(), is_new=True)
    return Resolution(spec=found.spec, profile=profile, model=model, rendered=rendered)


def kept_revision(revision: str, revisions: tuple[Body, ...]) -> Rendered | None:
    """What was rendered for a revision, from its ControllerRevision; None when none keeps it."""
    for body in revisions:
        if body["metadata"].get("labels", {}).get(names.REVISION_LABEL) == revision:
            data = body["data"]
            return Rendered(revision=revision, template=data["template"], plan=data["plan"], is_new=False)
    return None


def _problems(error: ValidationError, root: str) -> str:
    lines = []
    for item in error.errors(include_url=False)[:5]:
        path = ".".join(str(part) for part in (root, *item["loc"]))
        lines.append(f"{path}: {item['msg'].removeprefix('Value error, ')}")
    return json.dumps("; ".join(lines), ensure_ascii=False)[1:-1]
