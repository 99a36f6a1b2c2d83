"""Surge where there is room, one at a time where there is none (llmkube 192: no spare GPU)."""

from datetime import timedelta
from typing import Any

import pytest

from forebay_operator.api.inference_service import Rollout
from forebay_operator.pod_views import PodView
from forebay_operator.rollouts import strategy
from tests.test_operator.world import START


def pod(revision: str, *, unschedulable_for: int | None = None) -> PodView:
    since = None if unschedulable_for is None else START - timedelta(seconds=unschedulable_for)
    return PodView(
        name=revision,
        uid=revision,
        revision=revision,
        phase="pending",
        created=START,
        ready=False,
        unschedulable_since=since,
    )


def deployment(max_surge: int) -> dict[str, Any]:
    return {"spec": {"strategy": {"rollingUpdate": {"maxSurge": max_surge}}}}


@pytest.mark.parametrize(
    ("pods", "surge_before", "expected"),
    [
        ([pod("new")], 1, "Surge"),
        ([pod("old"), pod("new")], 1, "Surge"),
        ([pod("old"), pod("new", unschedulable_for=59)], 1, "Surge"),
        ([pod("old"), pod("new", unschedulable_for=60)], 1, "OneAtATime"),
        ([pod("old"), pod("new")], 0, "OneAtATime"),
        ([pod("new"), pod("new")], 0, "Surge"),
        ([pod("new", unschedulable_for=600)], 1, "Surge"),
    ],
    ids=["no rollout", "begins", "patient", "stuck", "stays so", "ends", "scaling is no rollout"],
)
def test_auto_looks_whether_the_surge_pod_finds_a_place(pods: list[PodView], surge_before: int, expected: str) -> None:
    assert strategy(None, deployment(surge_before), pods, "new", START) == expected


@pytest.mark.parametrize("wish", ["Surge", "OneAtATime"])
def test_a_wish_is_followed(wish: Any) -> None:
    stuck = [pod("old"), pod("new", unschedulable_for=600)]
    assert strategy(Rollout(strategy=wish), deployment(1), stuck, "new", START) == wish
