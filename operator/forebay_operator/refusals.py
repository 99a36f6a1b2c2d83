"""When the engine itself refuses a revision: counted in status, and after three times not tried again. Pure.

Stopping is a Deployment at 0, or on the revision before while that one's pods are there: what serves is never taken
away for a change that does not work. The count stands in status, so that it outlives the operator. It ends with its
revision: a change of the spec, or a new value of the restart annotation, makes another one.
"""

from collections.abc import Sequence

from forebay_operator import names
from forebay_operator.api.status import EngineRefusal
from forebay_operator.children import template_revision
from forebay_operator.conditions import time_text
from forebay_operator.failures import EXIT_REASONS, Failure
from forebay_operator.observed import Observed
from forebay_operator.pod_views import PodView, parse_time
from forebay_operator.resolve import Rendered, kept_revision

REFUSALS_TO_STOP = 3

FINAL_EXIT_CODES = frozenset({2, 13, 14})
"""What the same pod says again however often it starts: a bad configuration, weights or a KV cache that do not fit.

A model that is missing (11), forbidden (12) or damaged (16) may be put right where it lies, without any change of the
spec, and a device (15) or a step (17) may work next time: these go on, at the kubelet's pace.
"""

_DO_NOT_FIT = frozenset({13, 14})


def refusal_of(observed: Observed, revision: str, desired: int) -> EngineRefusal | None:
    """The count of identical refusals, taken on by what the pods of this revision say now.

    None: none yet, a pod of the revision serves after all, or no pod is asked for (asking again tries again). An end is
    counted when it is later than the last one counted, so the same pods in the same state never count twice; of two
    pods that end in the same second one is missed, which only makes the stop later.
    """
    pods = [pod for pod in observed.pods if pod.revision == revision and pod.phase != "draining"]
    if desired == 0 or any(pod.ready for pod in pods):
        return None
    record = _recorded(observed, revision)
    ends = [pod.last_end for pod in pods if pod.last_end and pod.last_end.code in FINAL_EXIT_CODES]
    for end in sorted(ends, key=lambda end: end.at):
        if record is not None and end.at <= parse_time(record.last_time):
            continue
        before = record.count if record is not None and record.exit_code == end.code else 0
        record = EngineRefusal(
            revision=revision,
            exit_code=end.code,
            reason=EXIT_REASONS[end.code],
            message=end.message,
            count=before + 1,
            last_time=time_text(end.at),
        )
    return record


def is_final(refusal: EngineRefusal | None) -> bool:
    """Whether the revision is not to be tried again."""
    return refusal is not None and refusal.count >= REFUSALS_TO_STOP


def shortage(refusal: EngineRefusal | None) -> Failure | None:
    """What the engine said when it found less room than the plan counted on; None when it did not."""
    if refusal is None or refusal.exit_code not in _DO_NOT_FIT:
        return None
    return Failure(refusal.reason, refusal.message)


def stop(refusal: EngineRefusal | None) -> Failure | None:
    """What the engine said and what makes the operator try again, once it does not by itself; None while it does."""
    if refusal is None or not is_final(refusal):
        return None
    return Failure(
        refusal.reason,
        f"{refusal.message}; the engine has refused {refusal.count} times and is not started again: change the spec, "
        f"or set the annotation {names.RESTART_ANNOTATION} to a new value",
    )


def fallback(observed: Observed, refused: str) -> Rendered | None:
    """The older revision to stay on instead of a refused one; None: there is none, so nothing should run.

    Once the Deployment has gone back it stays there, whatever becomes of the pods.
    """
    running = template_revision(observed.deployment)
    if running != refused:
        return kept_revision(running, observed.revisions)
    serving = [pod for pod in observed.pods if pod.ready and pod.revision != refused]
    candidates = (kept_revision(pod.revision, observed.revisions) for pod in _newest_first(serving))
    return next((kept for kept in candidates if kept is not None), None)


def _newest_first(pods: Sequence[PodView]) -> list[PodView]:
    return sorted(pods, key=lambda pod: (pod.created, pod.name), reverse=True)


def _recorded(observed: Observed, revision: str) -> EngineRefusal | None:
    written = observed.status.get("refusal")
    return EngineRefusal.model_validate(written) if written and written.get("revision") == revision else None
