"""Pods that are deleted under load drain; an operator that is away or restarted changes nothing."""

import asyncio
import time

import openai

from hack.install import OPERATOR_NAMESPACE
from hack.kube import condition, kubectl, list_objects, wait_until
from tests.e2e.cluster import Service, apply_example, wait_for_condition


async def test_a_pod_deleted_under_load_finishes_its_streams_and_refuses_new_ones(smollm2: Service) -> None:
    client = smollm2.async_client()
    (pod,) = smollm2.pods
    name, ip = pod["metadata"]["name"], pod["status"]["podIP"]
    started = asyncio.Event()

    async def stream() -> tuple[str | None, int]:
        reason, tokens = None, 0
        async for chunk in await client.completions.create(
            model="smollm2",
            prompt="Once upon a time",
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
            stream_options={"include_usage": True},
        ):
            started.set()
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
            if chunk.choices and chunk.choices[0].finish_reason:
                reason = chunk.choices[0].finish_reason
        return reason, tokens

    streams = [asyncio.create_task(stream()) for _ in range(4)]
    await started.wait()
    await asyncio.to_thread(kubectl, "delete", "pod", name, "-n", smollm2.namespace, "--wait=false")
    direct = openai.AsyncOpenAI(base_url=f"http://{ip}:8000/v1", api_key="none", max_retries=0, timeout=30)
    outcomes: list[int] = []
    # preStop sleeps 5 s, in which the pod still serves; from then on it refuses.
    deadline = time.monotonic() + 30
    while 503 not in outcomes and time.monotonic() < deadline and not all(s.done() for s in streams):
        try:
            await direct.completions.create(model="smollm2", prompt="Hi", max_tokens=1)
            outcomes.append(200)
        except openai.APIStatusError as refused:
            told_when = "Retry-After" in refused.response.headers
            outcomes.append(refused.status_code if told_when else -1)
        except openai.APIConnectionError:
            break
        await asyncio.sleep(0.5)
    assert set(outcomes) <= {200, 503}
    assert await asyncio.gather(*streams) == [("length", 200)] * 4
    await direct.close()
    await client.close()
    await asyncio.to_thread(
        wait_until,
        "a new pod that is ready",
        lambda: smollm2.status.get("readyReplicas") == 1 and name not in [p["metadata"]["name"] for p in smollm2.pods],
        300,
    )


def test_an_operator_that_is_away_and_comes_back_changes_nothing(smollm2: Service) -> None:
    wait_until("the status to settle", lambda: is_settled(smollm2), 120)
    before_pods = {p["metadata"]["uid"] for p in smollm2.pods}
    before_status = smollm2.status
    before_version = pod_template_generation(smollm2)
    kubectl("scale", "deployment", "--all", "-n", OPERATOR_NAMESPACE, "--replicas=0")
    wait_until("the operator to go", lambda: not list_objects("pods", OPERATOR_NAMESPACE), 120)
    time.sleep(60)  # the pods have to do without it for a minute
    assert smollm2.client().completions.create(model="smollm2", prompt="Hi", max_tokens=1).choices
    kubectl("scale", "deployment", "--all", "-n", OPERATOR_NAMESPACE, "--replicas=1")
    kubectl("rollout", "status", "deployment", "-n", OPERATOR_NAMESPACE, "--timeout=120s", timeout=130)
    time.sleep(15)  # longer than a reconcile takes: nothing may have happened by then
    assert {p["metadata"]["uid"] for p in smollm2.pods} == before_pods
    assert pod_template_generation(smollm2) == before_version
    assert without_decision_times(smollm2.status) == without_decision_times(before_status)


def test_a_killed_operator_comes_back_and_still_reconciles(namespace: str, smollm2: Service) -> None:
    before_pods = {p["metadata"]["uid"] for p in smollm2.pods}
    kubectl("delete", "pod", "--all", "-n", OPERATOR_NAMESPACE, "--grace-period=0", "--force")
    apply_example("smollm2-cpu.yaml", namespace, rename="after-kill", model={"uri": "pvc://nowhere/model.gguf"})
    seen = wait_for_condition("after-kill", "ReferencesResolved", "False", seconds=120)
    assert "nowhere" in seen["message"]
    kubectl("delete", "infsvc", "after-kill", "-n", namespace)
    assert {p["metadata"]["uid"] for p in smollm2.pods} == before_pods


def is_settled(service: Service) -> bool:
    """Whether every pod serves and has been verified: from here on nothing should change by itself."""
    resource = service.resource
    complete = condition(resource, "Progressing").get("status") == "False"
    verified = condition(resource, "PlanVerified").get("status") == "True"
    return complete and verified and "load" not in resource["status"]


def pod_template_generation(service: Service) -> int:
    (deployment,) = list_objects("deployment", service.namespace, f"app.kubernetes.io/instance={service.name}")
    return int(deployment["metadata"]["generation"])


def without_decision_times(status: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in status.items() if key != "autoscaling"}
