"""Replicas: `/scale` for people and other autoscalers, queue depth for our own."""

import asyncio
import contextlib
import json
from collections.abc import Iterator

import openai
import pytest

from hack.kube import get, kubectl, wait_until
from tests.e2e.cluster import Service, apply_example, wait_for_condition

SCALING = {
    "mode": "QueueDepth",
    "minReplicas": 1,
    "maxReplicas": 2,
    "target": {"waitingPerReplica": 2, "utilizationPercent": 70},
    "scaleDownDelay": "20s",
}


def test_scale_has_a_selector_and_kubectl_scale_is_honoured(smollm2: Service) -> None:
    path = f"/apis/serving.forebay.dev/v1alpha1/namespaces/{smollm2.namespace}/inferenceservices/{smollm2.name}/scale"
    scale = json.loads(kubectl("get", "--raw", path))
    assert scale["status"]["selector"]
    kubectl("scale", "infsvc", smollm2.name, "-n", smollm2.namespace, "--replicas=0")
    ready = wait_for_condition(smollm2.name, "Ready", "True", seconds=120, reason="ScaledToZero")
    assert ready["message"]
    wait_until("no pods", lambda: not smollm2.pods, 60)
    kubectl("scale", "infsvc", smollm2.name, "-n", smollm2.namespace, "--replicas=1")
    wait_until("a ready replica", lambda: smollm2.status.get("readyReplicas") == 1, 300)


@pytest.fixture
def autoscaled(namespace: str) -> Iterator[Service]:
    apply_example(
        "autoscaled.yaml",
        namespace,
        rename="scaled",
        scaling=SCALING,
        engine={"maxNumSeqs": 2},
        kvBudget={"concurrentSequences": 2},
        drain={"timeout": "20s"},
        podTemplate={"cpu": "250m"},
    )
    wait_for_condition("scaled", "Ready", "True", seconds=600)
    yield Service(namespace, "scaled")
    kubectl("delete", "infsvc", "scaled", "-n", namespace, "--wait=true")


async def test_a_queue_brings_a_second_pod_and_quiet_takes_it_away(autoscaled: Service) -> None:
    client = autoscaled.async_client()
    stop = asyncio.Event()

    async def keep_asking() -> None:
        while not stop.is_set():
            with contextlib.suppress(openai.RateLimitError, openai.InternalServerError, openai.APIConnectionError):
                await client.completions.create(
                    model=autoscaled.name,
                    prompt="Once upon a time",
                    max_tokens=64,
                    extra_body={"ignore_eos": True},
                )

    users = [asyncio.create_task(keep_asking()) for _ in range(12)]
    await asyncio.sleep(5)
    assert not any(user.done() for user in users)
    await asyncio.to_thread(wait_until, "two replicas", lambda: autoscaled.resource["spec"]["replicas"] == 2, 120)
    await asyncio.to_thread(wait_until, "two ready", lambda: autoscaled.status.get("readyReplicas") == 2, 300)
    decision = autoscaled.status["autoscaling"]
    assert decision["desiredReplicas"] == 2
    assert decision["reason"]
    assert decision["inputs"]
    stop.set()
    await asyncio.gather(*users)
    await client.close()
    await asyncio.to_thread(wait_until, "one replica", lambda: autoscaled.resource["spec"]["replicas"] == 1, 180)
    managers = json.loads(
        kubectl("get", "infsvc", "scaled", "-n", autoscaled.namespace, "-o", "json", "--show-managed-fields")
    )["metadata"]["managedFields"]
    assert "forebay-autoscaler" in {m["manager"] for m in managers}


def test_a_fixed_service_keeps_the_replicas_that_somebody_wrote(smollm2: Service) -> None:
    before = smollm2.resource["metadata"]["generation"]
    deployment = get("deployment", smollm2.name, smollm2.namespace)
    assert deployment is not None
    assert deployment["spec"]["replicas"] == smollm2.resource["spec"]["replicas"]
    assert smollm2.resource["metadata"]["generation"] == before
