"""Whether pods are replaced with a surge pod or one at a time. Pure.

A surge pod needs a spare accelerator. Without one it would wait for ever while the old pods keep theirs, so `Auto`
looks whether the surge pod finds a place, instead of counting accelerators: counting races with everybody else.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from forebay_operator.api.inference_service import Rollout
from forebay_operator.children import Strategy
from forebay_operator.observed import Body
from forebay_operator.pod_views import PodView

PATIENCE = timedelta(seconds=60)
"""How long a surge pod may find no place before the old pods make room."""


def strategy(
    rollout: Rollout | None, deployment: Body | None, pods: Sequence[PodView], revision: str, now: datetime
) -> Strategy:
    """The strategy that the Deployment should have now."""
    wish = rollout.strategy if rollout else "Auto"
    if wish != "Auto":
        return wish
    if all(pod.revision == revision for pod in pods):
        return "Surge"
    if _surges(deployment) is False:
        return "OneAtATime"  # stays so until the last old pod is gone, or each replica would wait anew
    stuck = any(
        pod.revision == revision and pod.unschedulable_since and now - pod.unschedulable_since >= PATIENCE
        for pod in pods
    )
    return "OneAtATime" if stuck else "Surge"


def _surges(deployment: Body | None) -> bool | None:
    rolling = (deployment or {}).get("spec", {}).get("strategy", {}).get("rollingUpdate", {})
    return rolling.get("maxSurge") != 0 if rolling else None
