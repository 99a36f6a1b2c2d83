"""Between the autoscaler and the service: samples from pods, the record in status, what is to be written. Pure."""

from dataclasses import asdict
from datetime import datetime

from forebay_operator.actions import Action, Scale, SetDeletionCost
from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.api.status import Autoscaling, ScalingInputs
from forebay_operator.autoscale import Decision, ReplicaState, Sample, decide
from forebay_operator.conditions import time_text
from forebay_operator.observed import Observed
from forebay_operator.pod_views import PodView, parse_time
from forebay_operator.resolve import Rendered

VICTIM_COST = "-1"
USUAL_COST = "0"


def decision(observed: Observed, spec: InferenceServiceSpec, rendered: Rendered) -> Decision | None:
    """The autoscaler's decision; None when it is not asked."""
    if spec.scaling is None or spec.scaling.mode != "QueueDepth" or spec.suspend:
        return None
    record = observed.status.get("autoscaling") or {}
    last = record.get("lastScaleTime")
    return decide(
        [sample(pod, rendered.revision, observed.now) for pod in observed.pods if pod.phase != "draining"],
        spec.scaling,
        current=spec.replicas,
        capacity=max(1, int(rendered.plan["maxNumSeqs"])),
        now=observed.now,
        history=observed.history,
        last_scale=parse_time(last) if last else None,
    )


def sample(pod: PodView, revision: str, now: datetime) -> Sample:
    """One pod as the autoscaler sees it."""
    state: ReplicaState = "loading"
    if pod.phase == "serving":
        state = "serving"
    elif pod.phase == "failed":
        state = "failed"
    return Sample(
        pod=pod.name,
        state=state,
        age_seconds=(now - pod.created).total_seconds(),
        running=pod.scraped.running if pod.scraped else None,
        waiting=pod.scraped.waiting if pod.scraped else None,
        current_revision=pod.revision == revision,
    )


def record(made: Decision, observed: Observed) -> Autoscaling:
    """The record for the status.

    Numbers of a decision that holds are not written anew at each look, or the status would change all the time: the
    record changes when the reason, the wish or the pods change.
    """
    before = observed.status.get("autoscaling")
    last = before.get("lastScaleTime") if before else None
    changed = made.desired != made.inputs.current_replicas
    fresh = Autoscaling(
        desired_replicas=made.desired,
        reason=made.reason,
        message=made.message,
        inputs=ScalingInputs(**asdict(made.inputs)),
        last_scale_time=time_text(observed.now) if changed else last,
    )
    if before is None or changed:
        return fresh
    kept = Autoscaling.model_validate(before)
    return kept if _same_but_for_load(kept, fresh) else fresh


def _same_but_for_load(kept: Autoscaling, fresh: Autoscaling) -> bool:
    pods = ("current_replicas", "ready_replicas", "loading_replicas", "reporting_replicas")
    same_pods = all(getattr(kept.inputs, name) == getattr(fresh.inputs, name) for name in pods)
    return same_pods and (kept.desired_replicas, kept.reason) == (fresh.desired_replicas, fresh.reason)


def scale_actions(made: Decision, observed: Observed) -> list[Action]:
    """The write to `/scale`, with the victim marked before; nothing when all is as it should be."""
    if made.desired == made.inputs.current_replicas:
        return []
    costs: list[Action] = []
    if made.victim is not None:
        for pod in observed.pods:
            cost = VICTIM_COST if pod.name == made.victim else USUAL_COST
            if (pod.deletion_cost or USUAL_COST) != cost:
                costs.append(SetDeletionCost(pod.name, cost))
    return [*costs, Scale(made.desired)]
