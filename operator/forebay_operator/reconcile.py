"""reconcile: from what was observed to what is to be done. Pure: no I/O, no clock; the same in, the same out."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from forebay_operator.actions import Action, Apply, Delete, PatchStatus
from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.autoscale import History
from forebay_operator.children import (
    controller_revision,
    deployment,
    is_applied,
    service,
    service_account,
    template_revision,
)
from forebay_operator.failures import Failure
from forebay_operator.inspect_pods import inspect_pod
from forebay_operator.observed import Body, Observed, is_owned
from forebay_operator.refusals import fallback, is_final, refusal_of
from forebay_operator.resolve import Rendered, Resolution, attempt_of, known_model, resolve, wanted_inspect_pods
from forebay_operator.rollouts import strategy
from forebay_operator.scaling import decision, record, scale_actions
from forebay_operator.status import build_status
from forebay_operator.transitions import transition_events

KEPT_REVISIONS = 3
"""Rendered templates that are kept beside those that pods still run."""
RETRY_SECONDS = (5, 10, 20, 40, 60)
"""Before the second, third... attempt to read a model's facts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be done now, and when to look again at the latest."""

    actions: tuple[Action, ...]
    history: History
    requeue_seconds: float | None = None
    """None: only when something happens."""


def reconcile(observed: Observed) -> Outcome:
    """One step from what is towards what should be."""
    resolution = resolve(observed)
    spec, rendered = resolution.spec, resolution.rendered
    desired = 0 if spec is None or spec.suspend else spec.replicas
    running = rendered
    if rendered is not None:
        resolution = replace(resolution, refusal=refusal_of(observed, rendered.revision, desired))
        if is_final(resolution.refusal):
            running = fallback(observed, rendered.revision)
    made = decision(observed, spec, running) if spec and running else None
    actions: list[Action] = []
    if foreign := _foreign(observed):
        resolution = Resolution(
            spec=spec, profile=resolution.profile, model=resolution.model, reference_problem=foreign
        )
    elif spec is not None:
        actions += _children(observed, spec, rendered, running)
        actions += _inspection(observed, spec, resolution)
        if made is not None:
            actions += scale_actions(made, observed)
    autoscaling = record(made, observed) if made else None
    status = build_status(observed, resolution, desired, made, autoscaling)
    if status != observed.status:
        actions.append(PatchStatus(status))
        actions += transition_events(observed.status, status)
    return Outcome(
        tuple(actions), made.history if made else History(), _look_again(observed, resolution, made is not None)
    )


def _foreign(observed: Observed) -> Failure | None:
    """An object of ours that somebody else has made already: left alone, and said so."""
    for body in (observed.deployment, observed.endpoint, observed.account):
        if body is not None and not is_owned(body, observed.owner):
            name = body["metadata"]["name"]
            kind = body.get("kind", "object")
            return Failure("NameTaken", f"{kind} {name} exists and does not belong to this service; rename one of them")
    return None


def _children(
    observed: Observed, spec: InferenceServiceSpec, rendered: Rendered | None, running: Rendered | None
) -> list[Action]:
    """Applies for every child that is not yet as it should be; the account first: inspect pods need it, too.

    `running`: what was rendered, or the revision to stay on instead; None: no pod should run.
    """
    owner = observed.owner
    wanted: list[tuple[dict[str, Any], Body | None]] = [(service_account(owner), observed.account)]
    actions: list[Action] = []
    if rendered is not None:
        wanted.append((service(owner), observed.endpoint))
        if rendered.is_new:
            number = 1 + max((int(body.get("revision", 0)) for body in observed.revisions), default=0)
            manifest = controller_revision(owner, rendered.revision, number, rendered.template, rendered.plan)
            wanted.append((manifest, None))
        shown = running or rendered
        how = strategy(spec.rollout, observed.deployment, observed.pods, shown.revision, observed.now)
        replicas = 0 if spec.suspend or running is None else spec.replicas
        wanted.append((deployment(owner, shown.template, replicas, how), observed.deployment))
        actions += _old_revisions(observed, rendered.revision)
    return [Apply(manifest) for manifest, body in wanted if body is None or not is_applied(manifest, body)] + actions


def _old_revisions(observed: Observed, current: str) -> list[Action]:
    used = {pod.revision for pod in observed.pods} | {current, template_revision(observed.deployment)}
    unused = [
        body
        for body in sorted(observed.revisions, key=lambda body: int(body.get("revision", 0)), reverse=True)
        if not any(body["metadata"]["name"].endswith(f"-{revision}") for revision in used)
    ]
    return [_delete(body, "apps/v1", "ControllerRevision") for body in unused[KEPT_REVISIONS:]]


def _inspection(observed: Observed, spec: InferenceServiceSpec, resolution: Resolution) -> list[Action]:
    """Start, retry or clear away the pod that reads the model's facts."""
    facts_are_kept = observed.status.get("model") is not None and known_model(spec, observed) is not None
    if resolution.rendered is not None or resolution.model is not None or resolution.profile is None:
        # The pod goes only when its facts stand in the status, so that they cannot get lost on the way.
        gone = observed.inspect_pods if facts_are_kept else ()
        return [_delete(pod, "v1", "Pod") for pod in gone if "deletionTimestamp" not in pod["metadata"]]
    wanted = wanted_inspect_pods(spec, observed)
    latest = wanted[0] if wanted else None
    stale = [pod for pod in observed.inspect_pods if pod is not latest and "deletionTimestamp" not in pod["metadata"]]
    actions: list[Action] = [_delete(pod, "v1", "Pod") for pod in stale]
    attempt = attempt_of(latest) + 1 if latest else 1
    if latest is not None and not _may_retry(observed, latest):
        return actions
    if latest is not None and "deletionTimestamp" not in latest["metadata"]:
        actions.append(_delete(latest, "v1", "Pod"))
    manifest = inspect_pod(
        observed.owner,
        spec,
        resolution.profile.placement,
        observed.defaults.operator_image,
        observed.defaults.image_pull_policy,
        attempt,
    )
    return [*actions, Apply(manifest)]


def _may_retry(observed: Observed, pod: Body) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return True
    view = next(view for view in observed.inspect_views if view.uid == pod["metadata"]["uid"])
    if view.ended is None:
        never_ran = pod.get("status", {}).get("phase") == "Failed"  # evicted, or refused by the node
        other_image = pod["spec"]["containers"][0]["image"] != observed.defaults.operator_image
        return never_ran or (view.failure is not None and other_image)
    return bool(observed.now - view.ended >= _retry_delay(pod))


def _retry_delay(pod: Body) -> timedelta:
    return timedelta(seconds=RETRY_SECONDS[min(attempt_of(pod), len(RETRY_SECONDS)) - 1])


def _delete(body: Body, api_version: str, kind: str) -> Delete:
    return Delete(api_version, kind, body["metadata"]["name"], body["metadata"]["uid"])


def _look_again(observed: Observed, resolution: Resolution, scales: bool) -> float | None:
    """Progress, load and the patience of rollouts bring no events of their own."""
    unsettled = any(pod.phase != "serving" for pod in observed.pods)
    inspecting = resolution.rendered is None and resolution.profile is not None
    return float(observed.defaults.scrape_seconds) if scales or unsettled or inspecting else None
