"""The status of an InferenceService, from what was observed and resolved. Pure; never optimistic.

Ready is about the spec that is observed: pods of an older revision do not count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from forebay_operator import names
from forebay_operator.api.status import Autoscaling, InferenceServiceStatus, ModelStatus, PlanStatus, PodLoad
from forebay_operator.autoscale import Decision
from forebay_operator.conditions import Statement, with_times
from forebay_operator.failures import REFERENCE_REASONS, Failure
from forebay_operator.observed import Observed
from forebay_operator.pod_views import PodPhase, PodView
from forebay_operator.refusals import shortage, stop
from forebay_operator.resolve import Resolution
from forebay_operator.verification import plan_verified

MAX_PODS = 64
"""Pods in `status.load`."""

_PROGRESS: tuple[PodPhase, ...] = ("failed", "pending", "downloading", "loading", "compiling", "warming", "serving")
MIB = 2**20


def build_status(
    observed: Observed,
    resolution: Resolution,
    desired: int,
    decision: Decision | None,
    autoscaling: Autoscaling | None,
) -> dict[str, Any]:
    """The status to write. `desired`: pods that the Deployment is asked for."""
    owner, before = observed.owner, observed.status
    revision = resolution.rendered.revision if resolution.rendered else None
    current = [pod for pod in observed.pods if pod.revision == revision and pod.phase != "draining"]
    ready = [pod for pod in current if pod.ready]
    statements = _statements(observed, resolution, desired, current, decision)
    plan = resolution.rendered.plan if resolution.rendered else before.get("plan") if observed.deployment else None
    model = resolution.model or (ModelStatus.model_validate(before["model"]) if before.get("model") else None)
    status = InferenceServiceStatus(
        observed_generation=observed.generation,
        conditions=with_times(statements, before.get("conditions", ()), observed.now, observed.generation),
        model=model,
        accelerator_profile=(
            resolution.profile.accelerator.name if resolution.profile else before.get("acceleratorProfile")
        ),
        plan=PlanStatus.model_validate(plan) if plan else None,
        revision=revision or before.get("revision"),
        replicas=sum(pod.phase != "draining" for pod in observed.pods),
        ready_replicas=len(ready),
        updated_replicas=len(current),
        selector=names.selector_text(owner.name),
        endpoint=names.endpoint(owner.name, owner.namespace),
        load=_load(observed.pods),
        refusal=resolution.refusal,
        autoscaling=autoscaling,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _load(pods: Sequence[PodView]) -> list[PodLoad] | None:
    loads = [
        PodLoad(
            pod=pod.name,
            phase=pod.phase,
            bytes_loaded=pod.bytes_loaded,
            bytes_total=pod.bytes_total,
            reason=pod.failure.reason if pod.failure else None,
            message=pod.failure.message[:512] if pod.failure else None,
        )
        for pod in sorted(pods, key=lambda pod: pod.name)
        if pod.phase != "serving"
    ]
    return loads[:MAX_PODS] or None


def _statements(
    observed: Observed,
    resolution: Resolution,
    desired: int,
    current: Sequence[PodView],
    decision: Decision | None,
) -> list[Statement]:
    reference = _reference_problem(resolution, current)
    stopped = stop(resolution.refusal)
    blocked = resolution.spec_problem or resolution.plan_problem or stopped or reference or observed.apply_problem
    statements = [
        _ready(observed, resolution, desired, current, blocked),
        _spec_valid(resolution),
        _references_resolved(resolution, reference),
        _plan_feasible(resolution),
        _plan_verified(observed, resolution, current),
        _progressing(observed, resolution, desired, current, blocked),
    ]
    if decision is not None:
        statements.append(_scaling_active(decision))
    if degraded := _degraded(observed, current):
        statements.append(degraded)
    if stopped:
        statements.append(Statement("Stalled", "True", stopped.reason, stopped.message))
    return statements


def _reference_problem(resolution: Resolution, current: Sequence[PodView]) -> Failure | None:
    if resolution.reference_problem:
        return resolution.reference_problem
    return next((pod.failure for pod in current if pod.failure and pod.failure.reason in REFERENCE_REASONS), None)


def _ready(
    observed: Observed,
    resolution: Resolution,
    desired: int,
    current: Sequence[PodView],
    blocked: Failure | None,
) -> Statement:
    ready = sum(pod.ready for pod in current)
    hard = resolution.spec_problem or resolution.plan_problem or resolution.reference_problem
    if hard:
        return Statement("Ready", "False", hard.reason, hard.message)
    older = sum(pod.ready for pod in observed.pods) - ready
    still = f"; {older} pods of an older revision still serve" if older else ""
    if stopped := stop(resolution.refusal):
        return Statement("Ready", "False", stopped.reason, f"{stopped.message}{still}")
    if resolution.spec and resolution.spec.suspend:
        return Statement("Ready", "False", "Suspended", "spec.suspend is true")
    if problem := resolution.inspect_problem:
        return Statement("Ready", "False", problem.reason, f"reading the model's facts: {problem.message}")
    if resolution.rendered is None:
        return Statement("Ready", "False", "Inspecting", "reading the model's facts")
    if desired == 0:
        if observed.pods:
            return Statement("Ready", "False", "ScalingToZero", f"{len(observed.pods)} pods are still there")
        return Statement("Ready", "True", "ScaledToZero", "spec.replicas is 0: nothing runs, and nothing should")
    if ready:
        return Statement("Ready", "True", "Serving", f"{ready} of {desired} replicas serve")
    if blocked:
        return Statement("Ready", "False", blocked.reason, blocked.message)
    if not current:
        return Statement("Ready", "False", "CreatingPods", "no pod of this revision exists yet")
    failing = next((pod for pod in current if pod.failure), None)
    pod = failing or max(current, key=lambda pod: _PROGRESS.index(pod.phase))
    return Statement("Ready", "False", pod.reason, f"{_pod_message(pod)}{still}")


def _pod_message(pod: PodView) -> str:
    if pod.failure:
        return f"{pod.name}: {pod.failure.message}"
    if pod.bytes_total:
        return f"{pod.name}: {(pod.bytes_loaded or 0) // MIB} of {pod.bytes_total // MIB} MiB loaded"
    return f"{pod.name}: {pod.phase}"


def _spec_valid(resolution: Resolution) -> Statement:
    if problem := resolution.spec_problem:
        return Statement("SpecValid", "False", problem.reason, problem.message)
    return Statement("SpecValid", "True", "Valid", "every field has a value that makes sense")


def _references_resolved(resolution: Resolution, problem: Failure | None) -> Statement:
    if resolution.spec_problem:
        return Statement("ReferencesResolved", "Unknown", "InvalidSpec", "the spec is not valid")
    if problem:
        return Statement("ReferencesResolved", "False", problem.reason, problem.message)
    if resolution.rendered is None and resolution.model is None and resolution.plan_problem is None:
        return Statement("ReferencesResolved", "Unknown", "Inspecting", "the model is being looked at")
    return Statement("ReferencesResolved", "True", "Resolved", "the accelerator profile and the model were found")


def _plan_feasible(resolution: Resolution) -> Statement:
    if problem := resolution.plan_problem:
        return Statement("PlanFeasible", "False", problem.reason, problem.message)
    if resolution.rendered is None:
        return Statement("PlanFeasible", "Unknown", "ModelNotInspected", "the model's facts are not known yet")
    plan = resolution.rendered.plan
    return Statement(
        "PlanFeasible",
        "True",
        "Fits",
        f"tensor parallel {plan['tensorParallelSize']}, weights {plan['weights']}, {plan['kvCacheTokens']} KV tokens, "
        f"{plan['headroomBytes'] // MIB} MiB left over",
    )


def _plan_verified(observed: Observed, resolution: Resolution, current: Sequence[PodView]) -> Statement:
    rendered = resolution.rendered
    if rendered is None:
        return Statement("PlanVerified", "Unknown", "NoPlan", "there is no plan that an engine could verify")
    before: Mapping[str, Any] | None = None
    if observed.status.get("revision") == rendered.revision:
        conditions = observed.status.get("conditions", ())
        before = next((condition for condition in conditions if condition["type"] == "PlanVerified"), None)
    return plan_verified(rendered.plan, current, shortage(resolution.refusal), before)


def _progressing(
    observed: Observed,
    resolution: Resolution,
    desired: int,
    current: Sequence[PodView],
    blocked: Failure | None,
) -> Statement:
    ready = sum(pod.ready for pod in current)
    if blocked and not ready:
        return Statement("Progressing", "False", blocked.reason, blocked.message)
    if resolution.rendered is None:
        return Statement("Progressing", "True", "Inspecting", "reading the model's facts")
    old = len(observed.pods) - len(current)
    if ready == desired and len(current) == desired and not old:
        return Statement("Progressing", "False", "Complete", f"all {desired} replicas are as they should be")
    if old and len(current) <= desired:
        message = f"{ready} of {desired} replicas of the new revision serve, {old} older pods are there"
        return Statement("Progressing", "True", "ReplacingPods", message)
    return Statement("Progressing", "True", "ScalingPods", f"{ready} of {desired} replicas serve")


def _scaling_active(decision: Decision) -> Statement:
    if decision.blind:
        return Statement("ScalingActive", "False", "MetricsUnavailable", decision.message)
    return Statement("ScalingActive", "True", "QueueDepth", "the operator scales on the pods' queues")


def _degraded(observed: Observed, current: Sequence[PodView]) -> Statement | None:
    if problem := observed.apply_problem:
        return Statement("Degraded", "True", problem.reason, problem.message)
    failed = [pod for pod in current if pod.failure and pod.phase == "failed"]
    if not failed:
        return None
    first = failed[0]
    message = f"{len(failed)} of {len(current)} pods fail; {_pod_message(first)}"
    return Statement("Degraded", "True", first.reason, message)
