"""What the engine measured is held against the plan, and said in a condition that stays what it is."""

import pytest

from forebay_operator.actions import Event, PatchStatus
from forebay_operator.scraped import Measured, Scraped
from forebay_operator.verification import deviation
from tests.test_operator.world import World

PLAN = {"weightBytesPerGPU": 1_000_000, "kvCacheTokens": 4096, "kvBytesPerTokenPerGPU": 512, "kvBytesPerToken": 1024}


@pytest.mark.parametrize(
    ("weights", "tokens", "bytes_per_token", "expected"),
    [
        (1_000_000, 4096, 512, None),
        (1_020_000, 4096, 512, None),
        (1_020_001, 4096, 512, "WeightsDiffer"),
        (980_000, 4096, 512, None),
        (979_999, 4096, 512, "WeightsDiffer"),
        (1_000_000, 4080, 512, "KVCacheDiffers"),
        (1_000_000, 4096, 513, "KVCacheDiffers"),
        (1_000_000, 4096, 1024, "KVCacheDiffers"),  # an engine speaks of one accelerator, not of all together
        (2_000_000, 4080, 512, "WeightsDiffer"),
        (None, 4096, 512, None),
        (None, 4096, 513, "KVCacheDiffers"),
        (0, None, None, "WeightsDiffer"),
    ],
)
def test_weights_may_differ_by_two_percent_and_the_cache_by_nothing(
    weights: int | None, tokens: int | None, bytes_per_token: int | None, expected: str | None
) -> None:
    measured = Measured(weight_bytes=weights, kv_cache_tokens=tokens, kv_bytes_per_token=bytes_per_token)
    assert deviation(PLAN, measured) == expected


@pytest.mark.parametrize(("peak", "expected"), [(160, None), (165, None), (166, "ActivationsExceedPlan")])
def test_a_step_may_take_the_margin_and_no_more(peak: int, expected: str | None) -> None:
    memory = {"activationsBytes": 100, "logitsBytes": 60, "marginBytes": 5}
    assert deviation({**PLAN, "memory": memory}, Measured(activation_peak_bytes=peak)) == expected


@pytest.fixture
def world() -> World:
    world = World()
    world.know_the_model()
    return world


def as_planned(world: World, **other: int) -> Scraped:
    plan = world.service["status"]["plan"]
    said = {
        "weight_bytes": plan["weightBytesPerGPU"],
        "kv_cache_tokens": plan["kvCacheTokens"],
        "kv_bytes_per_token": plan["kvBytesPerTokenPerGPU"],
    }
    return Scraped(phase="serving", measured=Measured(**{**said, **other}))


def test_nothing_is_known_before_an_engine_has_told(world: World) -> None:
    world.start_pod("small-1", ready=False)
    world.scraped["small-1"] = Scraped(phase="loading")
    world.settle()
    seen = world.condition("PlanVerified")
    assert (seen["status"], seen["reason"]) == ("Unknown", "NotMeasured")


def test_a_plan_that_was_met_says_both_numbers(world: World) -> None:
    planned = world.service["status"]["plan"]["weightBytesPerGPU"]
    world.start_pod("small-1")
    world.scraped["small-1"] = as_planned(world, weight_bytes=planned + 1, activation_peak_bytes=7, free_bytes=8_000)
    world.settle()
    seen = world.condition("PlanVerified")
    assert (seen["status"], seen["reason"]) == ("True", "AsPlanned")
    assert f"{planned + 1:,} weight bytes measured, {planned:,} planned" in seen["message"]
    assert "7 bytes for the largest step measured, " in seen["message"]
    assert seen["message"].endswith("8,000 bytes were free before the start")


def test_a_plan_that_was_not_met_is_told_once_and_changes_nothing_else(world: World) -> None:
    world.start_pod("small-1")
    world.scraped["small-1"] = as_planned(world, kv_cache_tokens=16)
    world.settle()
    seen = world.condition("PlanVerified")
    assert (seen["status"], seen["reason"]) == ("False", "KVCacheDiffers")
    assert seen["message"].startswith("small-1: ")
    assert "16 KV cache tokens measured, 8,192 planned" in seen["message"]
    assert world.condition("Ready")["status"] == "True"
    assert [event.reason for event in world.happened].count("KVCacheDiffers") == 1
    world.wait(3600)
    assert world.look().actions == ()


def test_one_pod_that_differs_outweighs_those_that_do_not(world: World) -> None:
    world.edit(replicas=2)
    for name in ("small-1", "small-2"):
        world.start_pod(name)
        world.scraped[name] = as_planned(world)
    world.scraped["small-2"] = as_planned(world, weight_bytes=1)
    world.settle()
    assert world.condition("PlanVerified")["reason"] == "WeightsDiffer"


def test_the_verdict_outlives_a_pod_that_does_not_answer_and_scaling_to_zero(world: World) -> None:
    world.start_pod("small-1")
    world.scraped["small-1"] = as_planned(world)
    world.settle()
    before = world.condition("PlanVerified")
    del world.scraped["small-1"]
    assert not [action for action in world.step().actions if isinstance(action, PatchStatus | Event)]
    world.edit(replicas=0)
    del world.objects["Pod", "small-1"]
    world.settle()
    assert world.condition("PlanVerified") == {**before, "observedGeneration": 2}


def test_pods_of_an_older_revision_verify_nothing(world: World) -> None:
    world.start_pod("small-1")
    world.scraped["small-1"] = as_planned(world)
    world.settle()
    world.edit(drain={"timeout": "1m"})
    world.settle()
    assert world.condition("PlanVerified")["reason"] == "NotMeasured"


def test_without_a_plan_there_is_nothing_to_verify() -> None:
    world = World()
    world.step()
    seen = world.condition("PlanVerified")
    assert (seen["status"], seen["reason"]) == ("Unknown", "NoPlan")
